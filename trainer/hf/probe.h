// What a model computes for given tokens, as a file that anyone can compare with anything.
#pragma once

#include <filesystem>
#include <string>

#include "trainer/hf/open_model.h"

namespace sortie::trainer {

struct ProbeOptions {
  std::filesystem::path tokens;  // {"input_ids": [[...]], "labels": [[...]]}, -100 = not counted
  std::filesystem::path out;
  DType dtype = DType::f32;
  int threads = 1;
  Device device = {};  // that computes
  bool gradients = false;
  std::string activations;  // modules whose outputs are written, * = any characters; empty = none
};

/// Writes a safetensors file: `logits` [B, T, V] f32; with labels (shifted inside, as transformers
/// does) `loss`; `grad.NAME` f32 of every tensor under the name and in the layout of a Hugging Face
/// folder; `activation.MODULE` [B, T, ...] f32 under Sortie's names.
Result<> probe(const std::filesystem::path& place, const ProbeOptions& options);

}  // namespace sortie::trainer
