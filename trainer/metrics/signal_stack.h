// Stacks of their own for signal handlers. Some kernels that oneDNN makes for products of f32 (the
// implementation gemm:jit, for rows that are part of longer ones) have the stack pointer on a heap
// buffer while they run; upstream issue 4845, mended in March 2026. A handler on the thread's own
// stack would then write over what lies before that buffer: an operand, or the heap's own records.
//
// So handlers run on an alternate stack (sigaltstack(2), SA_ONSTACK). Each thread needs its own,
// and libraries start threads: OpenMP does so again and again, also inside oneDNN. So a program
// that links this file has its pthread_create(), which gives each new thread a stack for handlers
// first.
#pragma once

#include <csignal>

namespace sortie::trainer {

/// Installs a handler on the alternate stack, which the calling thread has after that; threads that
/// were started by pthread_create() have theirs. `flags` beside SA_ONSTACK and SA_RESTART.
void handle_signal(int number, void (*handler)(int), int flags, struct sigaction& before);
void handle_signal(int number, void (*handler)(int, siginfo_t*, void*), int flags,
                   struct sigaction& before);

}  // namespace sortie::trainer
