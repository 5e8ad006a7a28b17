// fuzz-seeds DIR: writes the initial fuzzing inputs to DIR/<harness>/, and the words of a config to
// DIR/config.dict. Uses the code with which Sortie writes its files and messages, so the seeds stay
// valid.
#include <fmt/core.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/atomic_file.h"
#include "common/base/check.h"
#include "common/config/architectures.h"
#include "common/config/describe.h"
#include "common/config/fields.h"
#include "common/config/load.h"
#include "common/config/text.h"
#include "common/health/kernel_line.h"
#include "common/wire/codec.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/data/gzip_reader.h"
#include "trainer/data/token_index.h"
#include "trainer/hf/config_json.h"
#include "trainer/hf/llmc.h"
#include "trainer/tokenizer/pretokenizer.h"
#include "trainer/tokenizer/tokenizer.h"

namespace {

using namespace sortie;

/// Writes seeds and records whether any write failed.
class Writer {
 public:
  explicit Writer(std::filesystem::path dir) : dir_(std::move(dir)) {}

  void seed(const std::string& harness, const std::string& name, const std::string& bytes) {
    file(std::filesystem::path(harness) / name, bytes);
  }
  void file(const std::filesystem::path& name, const std::string& bytes) {
    std::error_code ignored;  // if the folder is missing, writing the file fails
    std::filesystem::create_directories((dir_ / name).parent_path(), ignored);
    if (auto written = write_file_atomic(dir_ / name, bytes, 0644); !written) {
      fmt::print(stderr, "fuzz-seeds: {}\n", written.error().message);
      ok_ = false;
    }
  }
  bool ok() const { return ok_; }

 private:
  std::filesystem::path dir_;
  bool ok_ = true;
};

template <class T>
std::string little_endian(T value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i)
    bytes += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
  return bytes;
}

// ---- frame: one message of every type, alone and all in one stream -----------------------------

std::vector<wire::Message> messages() {
  using namespace wire;
  JobSpec job;
  job.run_id = "r1";
  job.host = "h1";
  job.world_size = 2;
  job.argv = {"/bin/true", ""};
  job.env = {{"A", "1"}, {"B", ""}};
  job.ranks = {{0, 0, 3, {{"RANK", "0"}}}, {1, 1, 4, {}}};
  job.config_toml = "[model]\n";
  job.nodes = {{"h", 1, 1, "", 1, 2}};
  job.peers = {"10.0.0.2", "fd00::2"};
  job.master_port = 29500;
  job.cpu_binding = CpuBinding::numa;
  return {Hello{1, "0123abcd"},
          job,
          Start{{{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}}},
          Stop{10000, "rank 3 failed"},
          Heartbeat(),
          OutputCredit{65536},
          Goodbye{},
          JobReady{"h1",
                   2,
                   1u << 30,
                   "6.1",
                   "v2 /x",
                   "libpmix 4.2.2",
                   {"eth0 10.0.0.1/24"},
                   {{"10.0.0.2", "10.0.0.1"}},
                   29500,
                   "core: 2 ranks on 2 cores",
                   {"0", "1"},
                   1700000000000,
                   "0d3c5a2e/4026531836",
                   12345,
                   8},
          RankStarted{1, 4242},
          Output{1, Stream::err, "text\n"},
          RankEvent{1, R"({"step": 1})"},
          RankExited{1, 1, 9, 0, 1, 0, 1700000000000, 2, 0, 0, 0, "process 7 (dd)"},
          Finished{},
          RunnerError{"spawn", "no such file", -1},
          PmixSetup{"r1", "h1", {"h1"}, {"0,1"}, 2, {0, 1}, "/tmp/x"},
          PmixReady{"4.2.2", {"A=1", "#rank 1", "B=2"}},
          PmixFence{"key", 2, "data"},
          PmixFenceDone{"key", -1, "data"},
          PmixModexRequest{1, 2, "key", 1000},
          PmixModexReply{1, 2, -46, "data"},
          PmixAbort{1, -7, "bye"},
          Sweep{"20261121-120000-abcd", 6000, "/sys/fs/cgroup/sortie-1", ""},
          Swept{3, {"1234 python3 (state D)"}},
          HoldMemory{"20261121-120000-abcd", "h1", 60000, 2000, 10000},
          MemoryHeld{"/dev/shm/sortie-0/memory-r1-0123abcd"},
          RankAnswer{1, R"({"type":"outer","number":3,"do":"work"})"},
          ForwardOpen{1, "h2", 51000},
          ForwardData{1, "bytes"},
          ForwardCredit{kForwardByLauncher | 1, 65536},
          ForwardClose{1, "port 51000: Connection refused"},
          PmixNames{7, 1, PmixNames::Action::publish, 0, {"service"}, {"port"}},
          PmixNamesDone{7, 0, {1}, {"service"}, {"port"}},
          PmixNotice{1, "MPI_Comm_spawn"},
          PmixExited{1, 1},
          Input{"text\n", 1},
          InputCredit{65536, 1},
          Adopt{2, "r1", 1, 0, 2, {{0, Stream::out, 7}, {1, Stream::err, 1u << 20}}},
          Adopted{2},
          TunnelOrder{R"({"do":"open","port":51820})"},
          TunnelReport{R"({"key":"6dVsUy0f1yTtqWq8yIqPqWk3P7D3j2y3nYc2b9rQz2A="})"},
          CheckRequest{R"({"kind":"clock"})"},
          CheckReport{R"({"part":"clock","unix_us":1700000000000000})"},
          CheckRequest{R"({"kind":"trainer","program":{"name":"t","env":["A=b"]},"limit_ms":9})"},
          CheckReport{R"({"part":"trainer","answer":{"build":"ab","gpus":[{"name":"H100"}]}})"},
          FilesOpen{FilesPurpose::put, "~/a", {"b"}, "0a", 1u << 30, 2000, 10000, "10.0.0.1"},
          FilesManifest{{{"d", FileKind::folder, 0755, 0, "", ""},
                         {"d/f", FileKind::file, 0644, 3, std::string(32, 'h'), ""},
                         {"d/l", FileKind::symlink, 0777, 0, "", "f"}},
                        1},
          FilesWanted{{{1, 0, 1}}, 1, 4711, "why"},
          FilePiece{1, 0, "abc"},
          FilePiece{1, 1, "", "gone"},
          FilesCredit{3},
          FilesServe{1, std::string(32, 'k')},
          FilesFetch{1, std::string(32, 'k'), "10.0.0.1", 4711},
          FilesProgress{3, "why"},
          FilesDone{"/home/u/a", 1, 3, 0},
          ImageOrder{"docker", "sortie:1", 0, "{}", {"/data"}, 2000, 10000, "7:8"},
          ImageQuery{"docker", "sortie:1", "sha256:0", {"sha256:1"}},
          ImageLacking{0, 1},
          ImageLoad{"docker", "sortie:1", "/f.tar"},
          ImageProgress{"1.2 of 3.4 GB"},
          ImageReady{"sha256:00", "sortie@sha256:11", "docker 20.10.24", 1u << 30, 1}};
}

void write_frames(Writer& out) {
  std::string stream;
  for (const wire::Message& message : messages()) {
    const std::string bytes = wire::encode(message);
    const auto decoded =
        wire::decode({static_cast<std::uint8_t>(bytes[4]), bytes.substr(wire::kFrameHeaderBytes)});
    SORTIE_CHECK(decoded.has_value() && wire::encode(*decoded) == bytes);
    stream += bytes;
    const std::string name(wire::message_name(message));
    out.seed("frame", name, std::string(1, '\0') + bytes);
    out.seed("frame", name + "-payload",
             std::string(1, '\0') + bytes.substr(wire::kFrameHeaderBytes));
  }
  out.seed("frame", "stream", std::string("\x03\x00\x06\x10", 4) + stream);
}

// ---- config: the defaults, and every key alone, from the file and from --set -------------------

void write_configs(Writer& out) {
  const config::JobConfig job;
  SORTIE_CHECK(config::load_job_text(config::init_text({.all = true}), "seed").has_value());
  out.seed("config", "default", config::to_toml(job));
  out.seed("config", "init", config::init_text({.all = true}));
  std::string words;
  for (const config::Section& section : config::sections())
    words += fmt::format("\"[{}]\"\n", section.name);
  for (const config::Field& field : config::fields()) {
    const std::string value = config::value_text(field, job);
    out.seed("config", fmt::format("file.{}", field.key),
             fmt::format("[{}]\n{} = {}\n", section_of(field), name_of(field), value));
    out.seed("config", fmt::format("set.{}", field.key),
             fmt::format("#--set {}={}\n", field.key, value));
    words += fmt::format("\"{}\"\n\"{} = \"\n", field.key, name_of(field));
  }
  for (const std::string_view word : {"true", "\\\"\\\"\\\"", "'''", "1e9", "0x1f", "inf", "nan",
                                      "\\\"30s\\\"", "\\\\u00e9", "#--set ", "[[", "]]", " = { "})
    words += fmt::format("\"{}\"\n", word);
  out.file("config.dict", words);
}

// ---- token_index: the input is a u64 size of the .bin, then the .idx ---------------------------

void write_indexes(Writer& out) {
  using namespace trainer;
  for (const TokenType type : {TokenType::u8, TokenType::u16, TokenType::i32, TokenType::i64}) {
    const std::vector<std::int32_t> lengths = {3, 0, 5};
    const std::vector<std::uint64_t> bounds = {0, 1, 3};
    std::string bytes(kIndexMagic);
    bytes += little_endian(kIndexVersion) + little_endian(static_cast<std::uint8_t>(type)) +
             little_endian<std::uint64_t>(lengths.size()) +
             little_endian<std::uint64_t>(bounds.size());
    std::uint64_t at = 0;
    std::string pointers;
    for (const std::int32_t length : lengths) {
      bytes += little_endian(length);
      pointers += little_endian(at);
      at += static_cast<std::uint64_t>(length) * token_bytes(type);
    }
    bytes += pointers;
    for (const std::uint64_t bound : bounds) bytes += little_endian(bound);
    SORTIE_CHECK(TokenIndex::parse(std::as_bytes(std::span(bytes)), at, "seed").has_value());
    out.seed("token_index", std::string(token_type_name(type)), little_endian(at) + bytes);
  }
}

// ---- manifest, safetensors ---------------------------------------------------------------------

void write_checkpoints(Writer& out) {
  using namespace trainer;
  std::vector<TensorEntry> entries;
  entries.push_back({"a.weight", StorageType::f32, {2, 3}});
  entries.push_back({"b", StorageType::bf16, {4}});
  entries.push_back({"scalar", StorageType::i64, {}});
  const std::string header = make_safetensors_header(entries, {{"format", "pt"}});
  const std::string file = header + std::string(entries.back().end, 'x');
  const auto bytes = std::as_bytes(std::span(file));
  SORTIE_CHECK(parse_safetensors_header(bytes, bytes.size(), "seed").has_value());
  out.seed("safetensors", "three", file);
  std::vector<TensorEntry> none;
  out.seed("safetensors", "empty", make_safetensors_header(none, {}));

  ShardInfo shard;
  shard.file = "shard-00000.safetensors";
  shard.bytes = 123;
  shard.sha256 = std::string(64, 'a');
  StoredPiece whole;
  whole.key = whole.name = "a.weight";
  whole.shape = {2, 3};
  whole.piece = Piece::whole(whole.shape);
  shard.pieces = {whole};
  out.seed("manifest", "shard", serialize(shard));
  Manifest manifest;
  manifest.run_id = "r1";
  manifest.step = 20;
  manifest.config_digest = std::string(64, 'b');
  manifest.config = "[model]\n";
  manifest.scalars = {{"lr", 3e-4}};
  manifest.counters = {{"skips", 1}};
  manifest.depends_on = {{"isa", "avx2"}};
  SORTIE_CHECK(add_shards(manifest, {shard}).has_value());
  SORTIE_CHECK(parse_shard_info(serialize(shard)).has_value());
  SORTIE_CHECK(parse_manifest(to_json(manifest), "seed").has_value());
  out.seed("manifest", "one-tensor", to_json(manifest));
}

// ---- files of other programs: tokenizer.json, config.json, index, llm.c, JSON lines, gzip ------

constexpr const char* kByteLevel = R"({"added_tokens": [{"id": 5, "content": "<s>", "special": true,
 "normalized": false, "lstrip": true, "rstrip": false, "single_word": false}, {"id": 6, "content": "caf\u00e9",
 "single_word": true}], "normalizer": {"type": "NFC"}, "pre_tokenizer": PRE,
 "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}},
 {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [5]}}}, "decoder": {"type": "ByteLevel"},
 "model": {"type": "BPE", "ignore_merges": true, "unk_token": "a", "vocab": {"a": 0, "b": 1, "ab": 2,
 "\u0120": 3, "\u0120a": 4}, "merges": [["a", "b"], "\u0120 a"]}})";
constexpr const char* kCharacters =
    R"({"added_tokens": [{"id": 0, "content": "<unk>", "special": true}],
 "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
 {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}, "pre_tokenizer": null,
 "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"},
 {"type": "BertProcessing", "cls": ["<unk>", 0], "sep": ["A", 1]}]},
 "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"},
 "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1,
 "stop": 0}]}, "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
 "vocab": {"<unk>": 0, "A": 1, "\u2581": 2, "\u2581A": 3, "<0xC3>": 4, "<0xA9>": 5},
 "merges": ["\u2581 A"]}})";
constexpr const char* kMetaspace =
    R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581",
 "prepend_scheme": "first", "split": false}, "decoder": {"type": "Metaspace", "replacement": "\u2581",
 "prepend_scheme": "first"}, "model": {"vocab": {"a": 0, "\u2581": 1}, "merges": []}})";

void write_tokenizers(Writer& out) {
  using namespace trainer;
  const auto seed = [&](const std::string& name, const std::string& text) {
    const auto tokenizer = hf_tokenizer_from_text(text, name);
    SORTIE_CHECK(tokenizer.has_value(), "{}", tokenizer ? "" : tokenizer.error().message);
    out.seed("tokenizer", name, text);
  };
  seed("characters", kCharacters);
  seed("metaspace", kMetaspace);
  for (const WordPattern pattern :
       {WordPattern::gpt2, WordPattern::llama3, WordPattern::qwen35, WordPattern::o200k,
        WordPattern::tekken, WordPattern::deepseek_v3}) {
    nlohmann::json steps = nlohmann::json::array();
    for (const std::string& regex : regexes_of_word_pattern(pattern))
      steps.push_back(
          {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}});
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
    std::string text = kByteLevel;
    text.replace(text.find("PRE"), 3,
                 nlohmann::json{{"type", "Sequence"}, {"pretokenizers", steps}}.dump());
    seed(fmt::format("pattern-{}", static_cast<int>(pattern)), text);
  }
}

void write_foreign(Writer& out) {
  using namespace trainer;
  for (const config::Preset& preset : config::presets()) {
    nlohmann::json json;
    if (write_hf_config(preset.model, json))
      out.seed("hf_config", std::string(preset.name), json.dump());
  }
  for (const Family& family : families()) {
    const nlohmann::json json = {{"model_type", family.hf.model_type}};
    out.seed("hf_config", std::string(family.name), json.dump());
  }
  out.seed(
      "hf_config", "version-4",
      R"({"model_type": "qwen2", "num_hidden_layers": 3, "use_sliding_window": true, "sliding_window": 5,
               "max_window_layers": 2, "rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0},
               "torch_dtype": "bfloat16"})");
  out.seed("hf_config", "layers",
           R"({"model_type": "gpt_neo", "num_layers": 3, "attention_types":
               [[["local", "global"], 1], [["local"], 1]], "window_size": 9})");
  out.seed(
      "weight_index", "two",
      R"({"metadata": {"total_size": 3}, "weight_map": {"a": "x-1.safetensors", "b": "../x"}})");

  for (const std::int32_t version : {3, 5}) {
    std::vector<std::int32_t> numbers = {20240326, version, 16, 37, 2, 2, 16, 128};
    numbers.resize(256);
    const std::uint64_t weights = 16 * (128 + 16 + 2) + 2 * (12 * 16 * 16 + 13 * 16);
    const std::uint64_t bytes = 1024 + weights * (version == 3 ? 4 : 2);
    const std::string header(reinterpret_cast<const char*>(numbers.data()), 1024);
    SORTIE_CHECK(read_llmc_header(std::as_bytes(std::span(header)), bytes, "seed").has_value());
    out.seed("llmc", std::to_string(version), little_endian(bytes) + header);
  }

  out.seed("json_line", "one",
           "text\n{\"id\": [1, {\"text\": null}], \"text\": \"a\\u00e9\\ud83d\\ude00\\n\"}");
  out.seed("json_line", "twice", "k\n {\"k\": \"a\", \"\\u006b\": true, \"k\": \"b\" } \r");
  // A stored block, a block with fixed Huffman codes, and two members followed by zeros.
  const std::string stored(
      "\x1f\x8b\x08\0\0\0\0\0\0\x03\x01\x03\0\xfc\xff\x61\x62\x63\xc2\x41\x24\x35\x03\0\0\0", 26);
  const std::string fixed(
      "\x1f\x8b\x08\0\0\0\0\0\0\x03\x4b\x4c\x4a\x06\0\xc2\x41\x24\x35\x03\0\0\0", 23);
  for (const std::string& member : {stored, fixed}) {
    std::string text;
    GzipReader reader(std::as_bytes(std::span(member)), "seed");
    SORTIE_CHECK(reader.read(10, text).has_value() && text == "abc");
  }
  out.seed("gzip", "stored", stored);
  out.seed("gzip", "fixed", fixed);
  out.seed("gzip", "members", stored + fixed + std::string(20, '\0'));
}

/// Writes a record of each kind of kernel message.
void write_kernel_lines(Writer& out) {
  const std::pair<const char*, const char*> lines[] = {
      {"xid", "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."},
      {"nvlink", "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 02"},
      {"recovery",
       "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (R)"},
      {"sxid", "nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 30"},
      {"gone", "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."},
      {"mce", "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400"},
      {"apei", "{1}[Hardware Error]: event severity: fatal"},
      {"edac", "EDAC MC1: 1 UE memory read error on CPU_SrcID#1"},
      {"poison", "Memory failure: 0x3c4f2: recovery action for dirty page: Recovered"},
      {"block", "blk_update_request: I/O error, dev sda, sector 2048"},
      {"buffer", "Buffer I/O error on dev dm-0, logical block 5"},
      {"ext4", "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2"},
      {"btrfs", "BTRFS error (device sdc: state EA): forced readonly"},
      {"xfs", "XFS (sda1): log I/O error -5"},
      {"nvme", "nvme nvme0: I/O 12 QID 3 timeout, aborting"},
      {"oom", "Out of memory: Killed process 4242 (python) total-vm:1kB"},
      {"netdev", "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out"},
      {"mlx5", "mlx5_core 0000:c1:00.0: device's health compromised - reached miss count"},
      {"aer", "pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0"},
      {"nfs", "nfs: server nas01 not responding, still trying"},
  };
  for (const auto& [name, line] : lines) {
    SORTIE_CHECK(health::kernel_finding(line).has_value(), "{}", line);
    out.seed("kernel_line", name, line);
    out.seed("kernel_line", std::string(name) + "-record",
             std::string("4,12,345,-;") + line + "\n DEVICE=+pci:1\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: fuzz-seeds DIR\n");
    return 2;
  }
  Writer out(argv[1]);
  write_frames(out);
  write_configs(out);
  write_indexes(out);
  write_checkpoints(out);
  write_tokenizers(out);
  write_foreign(out);
  write_kernel_lines(out);
  return out.ok() ? 0 : 1;
}
