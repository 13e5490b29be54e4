"""What the Linux kernel refuses to a predicted script and to the C code and programs that it runs."""
