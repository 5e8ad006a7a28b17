#include "trainer/hf/probe.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <cstring>
#include <optional>

#include "common/base/atomic_file.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/targets.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Batch {
  std::int64_t rows = 0, width = 0;
  std::vector<std::int32_t> input_ids, labels;  // labels may be empty
};

/// Reads a rectangle of token ids. Each must be in the vocabulary, or -100 if `uncounted`.
Result<std::vector<std::int32_t>> read_rectangle(const Json& json, std::string_view name,
                                                 std::int64_t vocab, bool uncounted, Batch& batch,
                                                 const std::string& where) {
  const auto bad = [&](std::string text) {
    return fail(ErrorCode::data, fmt::format("{}: {}: {}", where, name, text));
  };
  if (!json.is_array() || json.empty() || !json[0].is_array() || json[0].empty())
    return bad("not a list of lists of numbers");
  const auto rows = static_cast<std::int64_t>(json.size()),
             width = static_cast<std::int64_t>(json[0].size());
  if (batch.rows == 0) {
    batch.rows = rows;
    batch.width = width;
  }
  std::vector<std::int32_t> values;
  for (const Json& row : json) {
    if (rows != batch.rows || !row.is_array() ||
        static_cast<std::int64_t>(row.size()) != batch.width)
      return bad("rows of different lengths, or not as many as input_ids");
    for (const Json& value : row) {
      if (!value.is_number_integer()) return bad(value.dump() + " is no token id");
      const std::int64_t id = value.get<std::int64_t>();
      if (!(uncounted && id == ops::kNoTarget) && (id < 0 || id >= vocab))
        return bad(fmt::format("{} is outside of the vocabulary of {}", value.dump(), vocab));
      values.push_back(static_cast<std::int32_t>(id));
    }
  }
  return values;
}

Result<Batch> read_batch(const fs::path& path, const ModelShape& shape) {
  SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  const Json json = Json::parse(text, nullptr, false);
  const std::string where = path.string();
  if (!json.is_object() || !json.contains("input_ids"))
    return fail(ErrorCode::data,
                fmt::format("{}: not a JSON object with input_ids; write {{\"input_ids\": [[1, 2, "
                            "3]], \"labels\": [[1, 2, 3]]}}",
                            where));
  Batch batch;
  SORTIE_ASSIGN_OR_RETURN(batch.input_ids, read_rectangle(json["input_ids"], "input_ids",
                                                          shape.vocab_size, false, batch, where));
  if (json.contains("labels")) {
    SORTIE_ASSIGN_OR_RETURN(batch.labels, read_rectangle(json["labels"], "labels", shape.vocab_size,
                                                         true, batch, where));
  }
  if (batch.width > shape.sequence_length)
    return fail(ErrorCode::data, fmt::format("{}: {} tokens, the model is made for {}", where,
                                             batch.width, shape.sequence_length));
  return batch;
}

/// Collects the tensors to write and owns their memory.
class Output {
 public:
  void add(std::string name, Dims shape, std::vector<std::byte> data) {
    names_.push_back(std::move(name));
    shapes_.push_back(std::move(shape));
    data_.push_back(std::move(data));
  }
  void add(std::string name, Dims shape, std::span<const float> values) {
    const auto bytes = std::as_bytes(values);
    add(std::move(name), std::move(shape), std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
  Result<> write(const fs::path& path) const {
    std::vector<TensorToWrite> tensors;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      TensorToWrite one;
      one.entry.name = names_[i];
      one.entry.shape = shapes_[i];
      one.data = data_[i];
      tensors.push_back(std::move(one));
    }
    const auto written = write_safetensors(path, std::move(tensors), {{"format", "pt"}});
    if (!written) return std::unexpected(written.error());
    return {};
  }

 private:
  std::vector<std::string> names_;
  std::vector<Dims> shapes_;
  std::vector<std::vector<std::byte>> data_;
};

Tensor as_tensor(ExecutionContext& context, const Batch& batch,
                 const std::vector<std::int32_t>& values) {
  return ops::tensor_from_host<std::int32_t>(context, values, {batch.rows, batch.width});
}

/// Position t predicts label t + 1; the last one predicts nothing.
std::vector<std::int32_t> shifted(const Batch& batch) {
  std::vector<std::int32_t> targets(batch.labels.size());
  for (std::size_t i = 0; i < targets.size(); ++i)
    targets[i] = (static_cast<std::int64_t>(i) + 1) % batch.width == 0 ? ops::kNoTarget
                                                                       : batch.labels[i + 1];
  return targets;
}

Result<> run_logits(OpenedModel& opened, const Batch& batch, const std::string& pattern,
                    Output& output) {
  Graph graph(*opened.context, Graph::Mode::inference);
  bool matched = false;
  std::string last;  // name of a module, as an example
  if (!pattern.empty())
    graph.set_observer([&](std::string_view name, const Tensor& value) {
      last = name;
      if (fnmatch(pattern.c_str(), last.c_str(), 0) != 0) return;
      matched = true;
      Tensor wide = opened.context->empty(DType::f32, {value.elements()});
      ops::convert(*opened.context, value.view({value.elements()}), wide);
      const std::int64_t tokens = batch.rows * batch.width;
      output.add(fmt::format("activation.{}", name),
                 {batch.rows, batch.width, value.elements() / tokens},
                 ops::copy_to_host<float>(*opened.context, wide));
    });
  const Tensor logits =
      opened.model->logits(graph, as_tensor(*opened.context, batch, batch.input_ids));
  if (!pattern.empty() && !matched)
    return fail(ErrorCode::usage,
                fmt::format("--activations: \"{}\" matches no module; give names of modules, like "
                            "{}, or a pattern, like \"layers.0.*\"",
                            pattern, last));
  Tensor dense = opened.context->empty(DType::f32, logits.shape());  // without padding
  ops::copy(*opened.context, logits, dense);
  output.add("logits", {batch.rows, batch.width, logits.size(1)},
             ops::copy_to_host<float>(*opened.context, dense));
  return {};
}

Result<> run_loss(OpenedModel& opened, const Batch& batch, bool gradients, Output& output) {
  const std::vector<std::int32_t> targets = shifted(batch);
  const auto count = std::ranges::count_if(targets, [](std::int32_t id) { return id >= 0; });
  if (count == 0)
    return fail(ErrorCode::data, "labels: no token has a target, so there is no loss");
  ForwardContext context;
  Graph graph(*opened.context, gradients ? Graph::Mode::record : Graph::Mode::inference);
  const auto loss = opened.model->loss(graph, as_tensor(*opened.context, batch, batch.input_ids),
                                       as_tensor(*opened.context, batch, targets),
                                       1.0f / static_cast<float>(count), context);
  // transformers adds the balance loss of all routers to the loss, where the config says so.
  const Tensor& load = context.routers.load_loss;
  const double balance = load.defined() ? ops::read_scalar<double>(*opened.context, load) : 0.0;
  const double sum = ops::read_cross_entropy(*opened.context, loss).loss_sum;
  const auto mean = static_cast<float>(sum / static_cast<double>(count) + balance);
  output.add("loss", {}, {&mean, 1});
  if (!gradients) return {};
  graph.backward({});
  const ops::HostAccess<const float> gradient_values(*opened.context, opened.store->gradients());
  for (const HfTensor& tensor : opened.tensors)
    if (!tensor.mtp && tensor.parameter->spec().use != Use::state)
      output.add("grad." + without_prefix(tensor.name, opened.left_out_prefix), tensor.shape,
                 write_hf_tensor(tensor, StorageType::f32, gradient_values.span()));
  return {};
}

}  // namespace

Result<> probe(const fs::path& place, const ProbeOptions& options) {
  SORTIE_ASSIGN_OR_RETURN(
      OpenedModel opened,
      open_model(place, {options.dtype, options.threads, options.gradients, options.device}));
  SORTIE_ASSIGN_OR_RETURN(const Batch batch, read_batch(options.tokens, opened.model->shape()));
  if (options.gradients && batch.labels.empty())
    return fail(ErrorCode::usage,
                fmt::format("{}: gradients need labels, and there are none; add them",
                            options.tokens.string()));
  Output output;
  SORTIE_TRY(run_logits(opened, batch, options.activations, output));
  if (!batch.labels.empty()) SORTIE_TRY(run_loss(opened, batch, options.gradients, output));
  return output.write(options.out);
}

}  // namespace sortie::trainer
