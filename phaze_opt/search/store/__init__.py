"""Everything that opens the database of a study."""
