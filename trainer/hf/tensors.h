// Maps the tensors of a Hugging Face folder to the parameters of a model.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trainer/hf/stored_rows.h"
#include "trainer/models/families.h"

namespace sortie::trainer {

/// A tensor of the folder: a range of rows of a parameter, in the folder's order.
struct HfTensor {
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  Dims shape;        // as in the folder
  const Parameter* parameter = nullptr;
  std::int64_t first_row = 0, rows = 0, cols = 1;  // of the parameter; a vector has 1 column
  HfForm form = HfForm::plain;
  std::int64_t head_dim = 0;  // for HfForm::per_head
  bool mtp = false;           // belongs to a layer of multi-token prediction
};

/// Returns all tensors of a model, in the family's order. They exclude the padding of the
/// vocabulary.
std::vector<HfTensor> hf_tensors(const Family& family, const ModelShape& shape,
                                 ParameterStore& store);

/// Returns the number of values in the tensors, without those that are no parameters: a router's
/// bias.
std::int64_t parameter_elements(std::span<const HfTensor> tensors);

/// Returns row `row` of the parameter, in [first_row, first_row + rows), at its place in the
/// tensor's bytes.
StoredRow stored_row(const HfTensor& tensor, StorageType type, std::span<const std::byte> bytes,
                     std::int64_t row);
/// Returns the tensor in the folder's layout, built from rows of the parameter.
TensorData hf_tensor_data(const HfTensor& tensor, StorageType type,
                          std::function<StoredRow(std::int64_t row)> row_of);
/// Returns the tensor's part of a flat buffer in the folder's layout, rounded to nearest even.
std::vector<std::byte> write_hf_tensor(const HfTensor& tensor, StorageType type,
                                       std::span<const float> flat);

}  // namespace sortie::trainer
