"""Chip and network together: two spaces, enumerated, certified and verified."""
