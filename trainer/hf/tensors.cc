#include "trainer/hf/tensors.h"

#include <cstring>

namespace sortie::trainer {
namespace {

void replace(std::string& name, std::string_view place, std::int64_t number) {
  if (const std::size_t at = name.find(place); at != std::string::npos)
    name.replace(at, place.size(), std::to_string(number));
}
std::string with_numbers(std::string_view pattern, std::int64_t layer, std::int64_t expert) {
  std::string name(pattern);
  replace(name, "{}", layer);
  replace(name, "{e}", expert);
  return name;
}

/// Adds "<module>.weight" or ".bias". Returns false if the model has no such parameter.
bool add_tensor(const HfModule& module, std::int64_t layer, std::int64_t expert,
                std::string_view suffix, const ModelShape& shape, ParameterStore& store,
                std::vector<HfTensor>& out) {
  const std::string ours = with_numbers(module.ours, layer, expert) + std::string(suffix);
  const Parameter* parameter = store.find(ours);
  if (parameter == nullptr) return false;
  const ParameterSpec& spec = parameter->spec();
  HfTensor tensor;
  tensor.name = suffix == ".bias" && !module.hf_bias.empty()
                    ? with_numbers(module.hf_bias, layer, expert)
                    : with_numbers(module.hf, layer, expert) + std::string(suffix);
  tensor.parameter = parameter;
  tensor.rows = spec.shape[0];
  tensor.cols = spec.shape.dims() == 2 ? spec.shape[1] : 1;
  tensor.form = module.form;
  tensor.head_dim = shape.head_dim;
  if (module.ours == "embedding" || module.ours == "head") tensor.rows = shape.vocab_size;
  if (!module.segment.empty()) {
    std::int64_t first = 0;
    bool found = false;
    for (const Segment& segment : spec.segments) {
      if (segment.name == module.segment) {
        tensor.first_row = first;
        tensor.rows = segment.rows;
        found = true;
      }
      first += segment.rows;
    }
    SORTIE_CHECK(found, "{} has no segment {}", ours, module.segment);
  }
  if (spec.shape.dims() == 1) {
    tensor.shape = {tensor.rows};
    if (tensor.form == HfForm::transposed) tensor.form = HfForm::plain;
  } else if (tensor.form == HfForm::transposed) {
    tensor.shape = {tensor.cols, tensor.rows};
  } else {
    tensor.shape = {tensor.rows, tensor.cols};
  }
  out.push_back(std::move(tensor));
  return true;
}

/// Adds all tensors of a module in one layer, for every expert if it has experts.
void add_module(const HfModule& module, std::int64_t layer, const ModelShape& shape,
                ParameterStore& store, std::vector<HfTensor>& out) {
  const bool experts = module.ours.find("{e}") != module.ours.npos;
  bool more = true;
  for (std::int64_t expert = 0; more; ++expert) {
    bool found = false;
    for (const std::string_view suffix : {".weight", ".bias"})
      found |= add_tensor(module, layer, expert, suffix, shape, store, out);
    more = experts && found;
  }
}

/// Converts a row of the folder's tensor to a row of the parameter.
std::int64_t our_row(const HfTensor& tensor, std::int64_t row) {
  if (tensor.form != HfForm::per_head) return tensor.first_row + row;
  const std::int64_t d = tensor.head_dim, heads = tensor.rows / (3 * d);
  const std::int64_t head = row / (3 * d), part = row / d % 3;
  return part * heads * d + head * d + row % d;
}

/// The inverse of our_row() for HfForm::per_head.
std::int64_t their_row(const HfTensor& tensor, std::int64_t row) {
  const std::int64_t d = tensor.head_dim, heads = tensor.rows / (3 * d);
  const std::int64_t part = row / (heads * d), head = row / d % heads;
  return head * 3 * d + part * d + row % d;
}

/// Calls f(index in the folder's tensor, index in the flat buffer) for every element.
template <class F>
void for_each_element(const HfTensor& tensor, const F& f) {
  const std::int64_t begin = tensor.parameter->offset();
  for (std::int64_t row = 0; row < tensor.rows; ++row) {
    const std::int64_t from = begin + our_row(tensor, row) * tensor.cols;
    if (tensor.form == HfForm::transposed)
      for (std::int64_t col = 0; col < tensor.cols; ++col) f(col * tensor.rows + row, from + col);
    else
      for (std::int64_t col = 0; col < tensor.cols; ++col) f(row * tensor.cols + col, from + col);
  }
}

/// Calls f with a null pointer to the element type of a storage type.
template <class F>
void with_type(StorageType type, const F& f) {
  switch (type) {
    case StorageType::f32:
      return f(static_cast<float*>(nullptr));
    case StorageType::bf16:
      return f(static_cast<bf16*>(nullptr));
    case StorageType::f16:
      return f(static_cast<_Float16*>(nullptr));
    default:
      SORTIE_CHECK(false, "weights as {}", storage_name(type));
  }
}

}  // namespace

std::vector<HfTensor> hf_tensors(const Family& family, const ModelShape& shape,
                                 ParameterStore& store) {
  std::vector<HfTensor> tensors;
  for (const HfModule& module : family.hf.modules) {
    if (module.ours == "head" && shape.tied) continue;
    const std::int64_t times = module.ours.find("{}") == std::string_view::npos ? 1 : shape.layers;
    for (std::int64_t layer = 0; layer < times; ++layer)
      add_module(module, layer, shape, store, tensors);
  }
  const std::size_t before = tensors.size();
  for (const HfModule& module : family.hf.mtp_modules)
    for (std::int64_t layer = shape.layers;
         store.find("layers." + std::to_string(layer) + ".join.weight") != nullptr; ++layer)
      add_module(module, layer, shape, store, tensors);
  for (std::size_t i = before; i < tensors.size(); ++i) tensors[i].mtp = true;
  return tensors;
}

std::int64_t parameter_elements(std::span<const HfTensor> tensors) {
  std::int64_t total = 0;
  for (const HfTensor& tensor : tensors)
    if (tensor.parameter->spec().use != Use::state) total += tensor.rows * tensor.cols;
  return total;
}

StoredRow stored_row(const HfTensor& tensor, StorageType type, std::span<const std::byte> bytes,
                     std::int64_t row) {
  const std::size_t size = storage_bytes(type);
  if (tensor.form == HfForm::transposed)
    return {bytes.data() + static_cast<std::size_t>(row - tensor.first_row) * size, tensor.rows,
            type};
  const std::int64_t there =
      tensor.form == HfForm::per_head ? their_row(tensor, row) : row - tensor.first_row;
  return {bytes.data() + static_cast<std::size_t>(there * tensor.cols) * size, 1, type};
}

TensorData hf_tensor_data(const HfTensor& tensor, StorageType type,
                          std::function<StoredRow(std::int64_t row)> row_of) {
  if (tensor.form != HfForm::transposed)
    return gather_rows(tensor.rows, tensor.cols, type,
                       [tensor, row_of](std::int64_t row) { return row_of(our_row(tensor, row)); });
  // A row of the folder is a column of the parameter, whose rows are evenly spaced in memory.
  const StoredRow first = row_of(tensor.first_row);
  const auto size = static_cast<std::int64_t>(storage_bytes(first.type));
  std::int64_t apart = 1;
  for (std::int64_t r = 1; r < tensor.rows; ++r) {
    const StoredRow row = row_of(tensor.first_row + r);
    if (r == 1) apart = (row.data - first.data) / size;
    SORTIE_CHECK(row.data == first.data + r * apart * size && row.stride == first.stride, "{}",
                 tensor.name);
  }
  return gather_rows(tensor.cols, tensor.rows, type, [first, apart, size](std::int64_t row) {
    return StoredRow{first.data + row * first.stride * size, apart, first.type};
  });
}

std::vector<std::byte> write_hf_tensor(const HfTensor& tensor, StorageType type,
                                       std::span<const float> flat) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.rows * tensor.cols) *
                               storage_bytes(type));
  with_type(type, [&]<class T>(T*) {
    for_each_element(tensor, [&](std::int64_t there, std::int64_t here) {
      const T value = static_cast<T>(flat[static_cast<std::size_t>(here)]);
      std::memcpy(bytes.data() + static_cast<std::size_t>(there) * sizeof(T), &value, sizeof(T));
    });
  });
  return bytes;
}

}  // namespace sortie::trainer
