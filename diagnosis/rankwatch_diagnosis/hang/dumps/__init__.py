"""Flight-recorder dumps of any version and form, read without executing anything."""
