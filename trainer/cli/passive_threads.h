// How compute threads wait for each other.
#pragma once

namespace sortie::trainer {

/// By default GNU OpenMP's threads spin for milliseconds wherever they wait. On a machine that
/// something else uses, too, they then take the cores from the one thread that they wait for: one
/// busy process beside two threads on two cores makes a step five times as long. Sleeping instead
/// costs nothing that can be measured when the machine is idle.
///
/// libgomp reads OMP_WAIT_POLICY when it is loaded, before main(). So this starts the process anew
/// (same process id, arguments and descriptors) with OMP_WAIT_POLICY=passive. It does nothing where
/// the user has set OMP_WAIT_POLICY or GOMP_SPINCOUNT; where the system refuses, it says so and
/// returns. Call it before anything else.
void make_threads_wait_passively(char** argv);

}  // namespace sortie::trainer
