"""How the attempts of a run begin and end, as the ranks of one node show it."""
