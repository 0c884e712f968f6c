"""Every sandbox of this manager: made, pooled, leased and destroyed."""
