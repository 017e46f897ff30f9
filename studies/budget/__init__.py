"""Chips and their number at equal dollars, and chips at equal watts, certified."""
