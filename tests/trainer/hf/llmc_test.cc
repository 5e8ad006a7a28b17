// Tests of llm.c's files, which are written here from the weights of a Hugging Face folder and must
// give the same model.
#include "trainer/hf/llmc.h"

#include <cstring>

#include "tests/trainer/hf/folders.h"
#include "trainer/hf/import.h"
#include "trainer/hf/probe.h"

namespace sortie::trainer {
using namespace test;
namespace {

const fs::path kFolder = kData / "gpt2-a";
constexpr std::int32_t kFloat32 = 3, kBfloat16 = 5;
// Sizes of the fixture: positions, vocabulary, layers, heads, width, and the padded vocabulary of
// the file.
const std::vector<std::int32_t> kSizes = {40, 37, 2, 2, 16, 128};

std::vector<float> floats(const Entry& entry) {
  REQUIRE(entry.type == StorageType::f32);
  std::vector<float> values(entry.data.size() / 4);
  std::memcpy(values.data(), entry.data.data(), entry.data.size());
  return values;
}

std::string header(std::int32_t version, const std::vector<std::int32_t>& sizes) {
  std::vector<std::int32_t> numbers(256);
  numbers[0] = 20240326;
  numbers[1] = version;
  std::copy(sizes.begin(), sizes.end(), numbers.begin() + 2);
  return {reinterpret_cast<const char*>(numbers.data()), 1024};
}

/// Returns a file with the weights in llm.c's order: each name stacked over the layers, weights of
/// linear layers as [out, in].
std::string llmc_file(std::int32_t version, const Tensors& tensors) {
  std::string file = header(version, kSizes);
  const auto put = [&](float value) {
    const bf16 narrow(value);
    file.append(version == kFloat32 ? reinterpret_cast<const char*>(&value)
                                    : reinterpret_cast<const char*>(&narrow),
                version == kFloat32 ? sizeof value : sizeof narrow);
  };
  const auto put_tensor = [&](const std::string& name, bool conv1d) {
    const Entry& entry = tensors.at("transformer." + name);
    const std::vector<float> values = floats(entry);
    const auto rows = static_cast<std::size_t>(entry.shape[0]);
    const std::size_t cols = values.size() / rows;
    for (std::size_t i = 0; i < values.size(); ++i)
      put(conv1d ? values[i % rows * cols + i / rows] : values[i]);
  };
  put_tensor("wte.weight", false);
  for (int i = 0; i < (128 - 37) * 16; ++i) put(i % 2 == 0 ? 0.0f : 123.0f);  // padding: any value
  put_tensor("wpe.weight", false);
  for (const std::string part :
       {"ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"})
    for (const std::string suffix : {".weight", ".bias"})
      for (const std::string layer : {"h.0.", "h.1."})
        put_tensor(layer + part + suffix, part[0] != 'l' && suffix == ".weight");
  put_tensor("ln_f.weight", false);
  put_tensor("ln_f.bias", false);
  return file;
}

Tensors rounded(Tensors tensors) {
  for (auto& [name, entry] : tensors) {
    const std::vector<float> values = floats(entry);
    entry.type = StorageType::bf16;
    entry.data.resize(values.size() * 2);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bf16 narrow(values[i]);
      std::memcpy(entry.data.data() + 2 * i, &narrow, 2);
    }
  }
  return tensors;
}

Tensors probed(const fs::path& model, const Scratch& scratch) {
  ProbeOptions options;
  options.tokens = scratch.path / "ids.json";
  options.out = scratch.path / "probe.safetensors";
  options.gradients = true;
  fs::remove(options.out);
  const Json rows = Json::array({{5, 0, 36, 7, 7, 20, 11}});
  write_json(options.tokens, {{"input_ids", rows}, {"labels", rows}});
  const auto done = probe(model, options);
  REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
  return tensors_of(options.out);
}

std::string header_error(const std::string& bytes, std::uint64_t size) {
  const auto read = read_llmc_header(std::as_bytes(std::span(bytes)), size, "gpt2.bin");
  return read ? "" : read.error().message;
}

}  // namespace

TEST_CASE("a file of llm.c in either version is the model of the folder with the same weights") {
  const Scratch scratch;
  const Tensors f32 = tensors_of(kFolder / "model.safetensors");
  for (const std::int32_t version : {kFloat32, kBfloat16}) {
    CAPTURE(version);
    const Tensors weights = version == kFloat32 ? f32 : rounded(f32);
    const fs::path folder = copy_of(scratch, "gpt2-a"), file = scratch.path / "gpt2_tiny.bin";
    write_tensors(folder / "model.safetensors", weights);
    REQUIRE(write_file_atomic(file, llmc_file(version, f32)));
    check_same(probed(file, scratch), probed(folder, scratch));

    fs::remove_all(scratch.path / "checkpoint");
    const auto imported = import_hf(file, scratch.path / "checkpoint");
    REQUIRE_MESSAGE(imported, (imported ? "" : imported.error().message));
    CHECK(imported->tensors == 28);
    check_same(probed(scratch.path / "checkpoint", scratch), probed(folder, scratch));
    REQUIRE(export_hf(scratch.path / "checkpoint", scratch.path / "out", {}));
    check_same(all_tensors(scratch.path / "out"), weights);
    const Json json = json_of(scratch.path / "out" / "config.json");
    CHECK(json["dtype"] == (version == kFloat32 ? "float32" : "bfloat16"));
    CHECK(json["n_positions"] == 40);
    CHECK(json["attn_pdrop"] == 0.0);
    fs::remove_all(scratch.path / "out");
  }
}

TEST_CASE("the header of GPT-2 124M is read, with the token that ends its texts") {
  // The vocabulary is padded to 50304 rows. There are 124475904 weights in all.
  const std::string bytes = header(kBfloat16, {1024, 50257, 12, 12, 768, 50304});
  const auto read =
      read_llmc_header(std::as_bytes(std::span(bytes)), 1024 + 2 * 124475904ull, "gpt2.bin");
  REQUIRE_MESSAGE(read, (read ? "" : read.error().message));
  CHECK(read->type == StorageType::bf16);
  CHECK(read->padded_vocab == 50304);
  CHECK(read->model.architecture == "gpt2");
  CHECK(read->model.num_layers == 12);
  CHECK(read->model.residual_dropout == 0.0);
  CHECK(header_error(bytes, 1024 + 4 * 124475904ull) ==
        "gpt2.bin: the file has 497904640 bytes, its header speaks of 248952832; it is cut off or "
        "damaged");
}

TEST_CASE("a hostile header of llm.c is one clear error") {
  const std::string good = llmc_file(kFloat32, tensors_of(kFolder / "model.safetensors"));
  REQUIRE(header_error(good, good.size()).empty());
  const auto with = [&](std::size_t index, std::int32_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + 4 * index, &value, 4);
    return header_error(bytes, bytes.size());
  };
  struct Bad {
    std::size_t index;
    std::int32_t value;
    const char* says;
  };
  for (const Bad& bad : {
           Bad{0, 20240327, "not a GPT-2 checkpoint of llm.c, which starts with 20240326"},
           Bad{0, 20240803, "not with 20240803"},
           Bad{1, 1, "version 1; 3 (f32) and 5 (bf16) are read"},
           Bad{1, 4, "version 4"},
           Bad{1, 5, "its header speaks of"},
           Bad{2, 0, "model."},
           Bad{2, -1, "model."},
           Bad{2, 41, "its header speaks of"},
           Bad{2, 2147483647, "gpt2.bin: "},
           Bad{3, 0, "model.vocab_size"},
           Bad{3, -2147483647 - 1, "model.vocab_size"},
           Bad{3, 129, "a vocabulary of 129 that is padded to 128"},
           Bad{4, 0, "model.num_layers"},
           Bad{4, 65536, "its header speaks of"},
           Bad{4, 2147483647, "model.num_layers"},
           Bad{5, 0, "model.num_attention_heads"},
           Bad{5, 3, "16"},
           Bad{5, -7, "model.num_attention_heads"},
           Bad{6, 0, "model.hidden_size"},
           Bad{6, 1 << 20, "its header speaks of"},
           Bad{6, 2147483647, "model.hidden_size"},
           Bad{7, 0, "a vocabulary of 37 that is padded to 0"},
           Bad{7, -1, "padded to -1"},
           Bad{7, 2147483647, "its header speaks of"},
       }) {
    CAPTURE(bad.index);
    CAPTURE(bad.value);
    const std::string error = with(bad.index, bad.value);
    CAPTURE(error);
    CHECK(error.starts_with("gpt2.bin: "));
    CHECK(error.find(bad.says) != std::string::npos);
  }
  for (const std::size_t cut : {std::size_t{0}, std::size_t{3}, std::size_t{1023}})
    CHECK(header_error(good.substr(0, cut), cut).find("the file is truncated") !=
          std::string::npos);
  CHECK(header_error(good, good.size() - 1).find("speaks of") != std::string::npos);
  CHECK(header_error(good, good.size() + 1).find("speaks of") != std::string::npos);
}

TEST_CASE("a file that is not llm.c's leaves no checkpoint behind") {
  const Scratch scratch;
  REQUIRE(write_file_atomic(scratch.path / "some.bin", std::string(2000, 'x')));
  const auto imported = import_hf(scratch.path / "some.bin", scratch.path / "checkpoint");
  REQUIRE_FALSE(imported);
  CHECK(imported.error().message.find("some.bin: not a GPT-2 checkpoint of llm.c") !=
        std::string::npos);
  CHECK_FALSE(fs::exists(scratch.path / "checkpoint"));
  const auto nothing = import_hf(scratch.path / "absent.bin", scratch.path / "checkpoint");
  REQUIRE_FALSE(nothing);
  CHECK(nothing.error().message.find("absent.bin: no such file or folder") != std::string::npos);
}

}  // namespace sortie::trainer
