// Makes compute threads sleep while they wait for each other.
#pragma once

namespace sortie::trainer {

/// By default, threads of GNU OpenMP spin for milliseconds while they wait. On a machine with other
/// load, they then take cores from the very thread that they wait for: one busy process in addition
/// to two threads on two cores makes a step five times as long. Threads that sleep at once lose 3
/// to 5 % on an idle machine, because most waits are shorter than a wake-up. So they spin for 25
/// microseconds, then sleep (docs/benchmarks.md, "One busy neighbour").
///
/// libgomp reads its environment when it is loaded, before main(). Therefore this function
/// re-executes the process (same process id, arguments and descriptors) with GOMP_SPINCOUNT, the
/// iterations that take this time on this CPU, and OMP_WAIT_POLICY=passive, with which threads that
/// outnumber their cores do not spin at all. No-op if the user has set one of the two variables.
/// Logs a warning and returns if exec fails. Must be called before anything else.
void make_threads_wait_passively(char** argv);

}  // namespace sortie::trainer
