// Alternate stacks for signal handlers. Some kernels that oneDNN generates for products of f32 (the
// implementation gemm:jit, for rows that are part of longer ones) point the stack pointer at a heap
// buffer while they run (upstream issue 4845, fixed in March 2026). A handler on the thread's own
// stack would then overwrite the memory before that buffer: an operand, or metadata of the heap.
//
// Therefore handlers run on an alternate stack (sigaltstack(2), SA_ONSTACK). Each thread needs its
// own, and libraries start threads: OpenMP does so again and again, also inside oneDNN. A program
// that links this file therefore gets its pthread_create(), which first gives each new thread an
// alternate stack.
#pragma once

#include <csignal>

namespace sortie::trainer {

/// Installs a handler that runs on the alternate stack. Gives the calling thread such a stack;
/// threads that pthread_create() started have one. `flags` are added to SA_ONSTACK and SA_RESTART.
/// `before` receives the previous action.
void handle_signal(int number, void (*handler)(int), int flags, struct sigaction& before);
void handle_signal(int number, void (*handler)(int, siginfo_t*, void*), int flags,
                   struct sigaction& before);

}  // namespace sortie::trainer
