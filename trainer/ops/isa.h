// Instruction sets of Sortie's own row kernels (oneDNN chooses its own).
#pragma once

namespace sortie::trainer {
class ExecutionContext;
}

namespace sortie::trainer::ops {

enum class Isa { baseline, avx2, avx512 };

/// The widest set that this CPU supports. A new ExecutionContext uses it, or a narrower one if
/// ONEDNN_MAX_CPU_ISA limits it.
Isa best_isa();
const char* isa_name(Isa isa);

/// The set that `context` uses.
Isa isa_of(ExecutionContext& context);
/// Makes `context` use another set, which this CPU must support (for tests and comparisons).
void use_isa(ExecutionContext& context, Isa isa);

}  // namespace sortie::trainer::ops
