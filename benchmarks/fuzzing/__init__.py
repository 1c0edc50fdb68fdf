"""The parts of :mod:`benchmarks.fuzz`: programs, how they are evaluated, judged and minimised."""
