"""Image files of a site: read, encoded, and written as captures."""
