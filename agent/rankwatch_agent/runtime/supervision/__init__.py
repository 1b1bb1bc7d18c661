"""Runs collectors on their own schedules and keeps what they last found."""
