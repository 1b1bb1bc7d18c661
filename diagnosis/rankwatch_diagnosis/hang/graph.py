"""Strongly connected components of a graph, without recursion: a job has tens of thousands of ranks."""

from __future__ import annotations

from collections.abc import Sequence


def components(edges: Sequence[Sequence[int]]) -> list[list[int]]:
    """Strongly connected components of the graph node -> nodes, by Tarjan's algorithm, sinks first."""
    order: list[int] = [0] * len(edges)
    low = [0] * len(edges)
    on_stack = [False] * len(edges)
    stack: list[int] = []
    found: list[list[int]] = []
    count = 0
    for root in range(len(edges)):
        if order[root]:
            continue
        work = [(root, 0)]
        while work:
            node, position = work.pop()
            if position == 0:
                count += 1
                order[node] = low[node] = count
                stack.append(node)
                on_stack[node] = True
            for next_position in range(position, len(edges[node])):
                target = edges[node][next_position]
                if not order[target]:
                    work += [(node, next_position + 1), (target, 0)]
                    break
                if on_stack[target]:
                    low[node] = min(low[node], order[target])
            else:
                if low[node] == order[node]:
                    found.append(_cut(stack, on_stack, node))
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
    return found


def _cut(stack: list[int], on_stack: list[bool], node: int) -> list[int]:
    start = len(stack) - 1
    while stack[start] != node:
        start -= 1
    part = stack[start:]
    del stack[start:]
    for each in part:
        on_stack[each] = False
    return part


def terminal(edges: Sequence[Sequence[int]]) -> list[list[int]]:
    """The components that no edge leaves."""
    parts = components(edges)
    part_of = [0] * len(edges)
    for index, part in enumerate(parts):
        for node in part:
            part_of[node] = index
    return [
        part
        for index, part in enumerate(parts)
        if all(part_of[target] == index for node in part for target in edges[node])
    ]


def reaching(edges: Sequence[Sequence[int]], targets: Sequence[int]) -> set[int]:
    """Nodes from which a target can be reached, the targets included."""
    backwards: list[list[int]] = [[] for _ in edges]
    for node, out in enumerate(edges):
        for target in out:
            backwards[target].append(node)
    seen = set(targets)
    work = list(targets)
    while work:
        for node in backwards[work.pop()]:
            if node not in seen:
                seen.add(node)
                work.append(node)
    return seen
