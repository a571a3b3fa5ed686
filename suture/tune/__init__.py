"""Search of a method's settings on patients whom the study never tests on."""
