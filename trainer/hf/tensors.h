// The tensors of a Hugging Face folder against the parameters of a model.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "trainer/checkpoint/safetensors.h"
#include "trainer/models/families.h"

namespace sortie::trainer {

/// A tensor of the folder: some rows of a parameter, in the folder's order.
struct HfTensor {
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  Dims shape;        // as in the folder
  const Parameter* parameter = nullptr;
  std::int64_t first_row = 0, rows = 0, cols = 1;  // of the parameter; a vector has 1 column
  HfForm form = HfForm::plain;
  std::int64_t head_dim = 0;  // of per_head
  bool mtp = false;           // of a layer of multi-token prediction
};

/// All tensors of a model, in the family's order. Rows of the padded vocabulary are in none.
std::vector<HfTensor> hf_tensors(const Family& family, const ModelShape& shape,
                                 ParameterStore& store);

/// F32, BF16 and F16 are read and written.
bool is_hf_weight_type(StorageType type);

/// Fills the tensor's part of a flat buffer of the store (weights, gradients) from stored bytes.
void read_hf_tensor(const HfTensor& tensor, StorageType type, std::span<const std::byte> bytes,
                    std::span<float> flat);
/// The tensor's part of a flat buffer as bytes of the folder, rounded to nearest even.
std::vector<std::byte> write_hf_tensor(const HfTensor& tensor, StorageType type,
                                       std::span<const float> flat);

}  // namespace sortie::trainer
