#include "trainer/hf/llmc.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "trainer/hf/config_json.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::int32_t kMagic = 20240326;
constexpr std::int32_t kFloat32 = 3, kBfloat16 = 5;  // versions
constexpr std::int64_t kGpt2Vocab = 50257;           // its last token ends a text

/// A stack of weights in the file: those of every layer one after another, or a single one.
struct Stack {
  std::string_view ours;  // "{}" stands for the layer
  std::int64_t rows, cols;
};
std::vector<Stack> stacks(const LlmcHeader& header) {
  const std::int64_t c = header.model.hidden_size, f = 4 * c;
  return {{"embedding.weight", header.padded_vocab, c},
          {"positions.weight", header.model.num_positions, c},
          {"layers.{}.attention_norm.weight", c, 1},
          {"layers.{}.attention_norm.bias", c, 1},
          {"layers.{}.attention.qkv.weight", 3 * c, c},
          {"layers.{}.attention.qkv.bias", 3 * c, 1},
          {"layers.{}.attention.out.weight", c, c},
          {"layers.{}.attention.out.bias", c, 1},
          {"layers.{}.mlp_norm.weight", c, 1},
          {"layers.{}.mlp_norm.bias", c, 1},
          {"layers.{}.mlp.up.weight", f, c},
          {"layers.{}.mlp.up.bias", f, 1},
          {"layers.{}.mlp.down.weight", c, f},
          {"layers.{}.mlp.down.bias", c, 1},
          {"final_norm.weight", c, 1},
          {"final_norm.bias", c, 1}};
}

bool per_layer(const Stack& stack) {
  return stack.ours.find("{}") != std::string_view::npos;
}

/// The sizes were checked against the limits of [model], so nothing overflows.
std::uint64_t weight_bytes(const LlmcHeader& header) {
  std::int64_t elements = 0;
  for (const Stack& stack : stacks(header))
    elements += stack.rows * stack.cols * (per_layer(stack) ? header.model.num_layers : 1);
  return static_cast<std::uint64_t>(elements) * storage_bytes(header.type);
}

}  // namespace

Result<LlmcHeader> read_llmc_header(std::span<const std::byte> bytes, std::uint64_t file_bytes,
                                    std::string_view where) {
  const auto bad = [&](std::string_view what) {
    return fail(ErrorCode::data, fmt::format("{}: {}", where, what));
  };
  if (bytes.size() < kLlmcHeaderBytes)
    return bad(
        fmt::format("{} bytes are shorter than the header of llm.c ({}); the file is truncated",
                    bytes.size(), kLlmcHeaderBytes));
  const auto number = [&](std::size_t index) {
    std::int32_t value;
    std::memcpy(&value, bytes.data() + 4 * index, 4);
    return value;
  };
  if (number(0) != kMagic)
    return bad(fmt::format("not a GPT-2 checkpoint of llm.c, which starts with {}, not with {}",
                           kMagic, number(0)));
  if (number(1) != kFloat32 && number(1) != kBfloat16)
    return bad(
        fmt::format("version {}; {} (f32) and {} (bf16) are read: write it again with a newer "
                    "train_gpt2.py",
                    number(1), kFloat32, kBfloat16));
  const nlohmann::json json = {
      {"model_type", "gpt2"}, {"n_positions", number(2)}, {"vocab_size", number(3)},
      {"n_layer", number(4)}, {"n_head", number(5)},      {"n_embd", number(6)},
      {"attn_pdrop", 0.0},    {"embd_pdrop", 0.0},        {"resid_pdrop", 0.0}};
  LlmcHeader header{.model = {},
                    .type = number(1) == kFloat32 ? StorageType::f32 : StorageType::bf16,
                    .padded_vocab = number(7)};
  SORTIE_ASSIGN_OR_RETURN(header.model, read_hf_config(json, where));
  if (header.padded_vocab < header.model.vocab_size)
    return bad(fmt::format("a vocabulary of {} that is padded to {}; the header is damaged",
                           header.model.vocab_size, header.padded_vocab));
  const std::uint64_t expected = kLlmcHeaderBytes + weight_bytes(header);
  if (file_bytes != expected)
    return bad(
        fmt::format("the file has {} bytes, its header speaks of {}; it is cut off or "
                    "damaged",
                    file_bytes, expected));
  return header;
}

Result<LlmcFile> LlmcFile::open(const fs::path& path) {
  LlmcFile opened;
  SORTIE_ASSIGN_OR_RETURN(opened.file_, MappedFile::open(path));
  SORTIE_ASSIGN_OR_RETURN(
      opened.header_, read_llmc_header(opened.file_.bytes(), opened.file_.size(), path.string()));
  opened.find_matrices();
  return opened;
}

Result<nlohmann::json> LlmcFile::config_json() const {
  nlohmann::json json;
  SORTIE_TRY(write_hf_config(header_.model, json));
  if (header_.model.vocab_size == kGpt2Vocab)
    json["bos_token_id"] = json["eos_token_id"] = kGpt2Vocab - 1;
  return json;
}

void LlmcFile::find_matrices() {
  const std::byte* at = file_.bytes().data() + kLlmcHeaderBytes;
  for (const Stack& stack : stacks(header_))
    for (std::int64_t layer = 0; layer < (per_layer(stack) ? header_.model.num_layers : 1);
         ++layer) {
      const bool embedding = stack.ours == "embedding.weight";  // without the padding of the file
      matrices_[fmt::format(fmt::runtime(stack.ours), layer)] = {
          at, embedding ? header_.model.vocab_size : stack.rows, stack.cols};
      at += static_cast<std::size_t>(stack.rows * stack.cols) * storage_bytes(header_.type);
    }
}

StoredRow LlmcFile::row(const std::string& parameter, std::int64_t row) const {
  const auto found = matrices_.find(parameter);
  SORTIE_CHECK(found != matrices_.end(), "{}", parameter);
  const Matrix& matrix = found->second;
  if (row >= matrix.rows) return {};
  const std::int64_t element = row * matrix.cols;
  return {matrix.data + static_cast<std::size_t>(element) * storage_bytes(header_.type), 1,
          header_.type};
}

}  // namespace sortie::trainer
