"""Recording of a real run: phases, steps and events by source line, without knowledge of a framework."""
