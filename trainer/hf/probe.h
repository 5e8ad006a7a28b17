// Writes what a model computes for given tokens to a file, for comparison with other programs.
#pragma once

#include <filesystem>
#include <string>

#include "trainer/hf/open_model.h"

namespace sortie::trainer {

struct ProbeOptions {
  std::filesystem::path tokens;  // {"input_ids": [[...]], "labels": [[...]]}, -100 = no target
  std::filesystem::path out;
  DType dtype = DType::f32;
  int threads = 1;
  Device device = {};  // of the computation
  bool gradients = false;
  /// Pattern (fnmatch) of the modules whose outputs are written; empty = none. It is an error if
  /// it matches none.
  std::string activations;
};

/// Writes a safetensors file: `logits` [B, T, V] f32; with labels (shifted inside, as in
/// transformers) `loss`; with `gradients` `grad.NAME` f32 of every trained tensor, under the name
/// and in the layout of a Hugging Face folder, without layers of multi-token prediction;
/// `activation.MODULE` [B, T, ...] f32 under Sortie's names.
Result<> probe(const std::filesystem::path& place, const ProbeOptions& options);

}  // namespace sortie::trainer
