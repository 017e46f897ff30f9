"""Chips for mixtures of experts: two spaces, enumerated, certified and verified."""
