"""Why a point is as fast as it is, and what would change that."""
