// Makes compute threads sleep while they wait for each other.
#pragma once

namespace sortie::trainer {

/// By default, threads of GNU OpenMP spin for milliseconds while they wait. On a machine with other
/// load, they then take cores from the very thread that they wait for: one busy process in addition
/// to two threads on two cores makes a step five times as long. On an idle machine, sleeping has no
/// measurable cost.
///
/// libgomp reads OMP_WAIT_POLICY when it is loaded, before main(). Therefore this function
/// re-executes the process (same process id, arguments and descriptors) with
/// OMP_WAIT_POLICY=passive. No-op if the user has set OMP_WAIT_POLICY or GOMP_SPINCOUNT. Logs a
/// warning and returns if exec fails. Must be called before anything else.
void make_threads_wait_passively(char** argv);

}  // namespace sortie::trainer
