// Instruction sets of Sortie's own row kernels (oneDNN chooses its own).
#pragma once

namespace sortie::trainer {
class ExecutionContext;
}

namespace sortie::trainer::ops {

enum class Isa { baseline, avx2, avx512 };

/// The widest set of this CPU. A new ExecutionContext uses it, or the narrower one that
/// ONEDNN_MAX_CPU_ISA allows.
Isa best_isa();
const char* isa_name(Isa isa);

/// The set that `context` uses.
Isa isa_of(ExecutionContext& context);
/// Takes another set, which this CPU must have (for tests and comparisons).
void use_isa(ExecutionContext& context, Isa isa);

}  // namespace sortie::trainer::ops
