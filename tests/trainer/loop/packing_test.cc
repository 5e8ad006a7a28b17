// Tests of conversations that share sequences: which ones do, and that each is trained as it is
// alone.
#include "trainer/samples/packing.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/every_case.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_mixture.h"
#include "trainer/loop/validation.h"
#include "trainer/models/families.h"
#include "trainer/samples/chat_source.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

constexpr std::int64_t kLength = 48;

std::vector<std::uint32_t> numbers_to(std::size_t count) {
  std::vector<std::uint32_t> all(count);
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

std::vector<std::vector<std::uint32_t>> rows_of(const PackedRows& packed) {
  std::vector<std::vector<std::uint32_t>> rows;
  for (std::size_t row = 0; row < packed.size(); ++row)
    rows.emplace_back(packed[row].begin(), packed[row].end());
  return rows;
}

using Rows = std::vector<std::vector<std::uint32_t>>;

/// Writes twelve conversations of two texts, all shorter than a sequence. Returns the file.
std::string write_conversations(const sortie::test::ScopedTempDir& dir) {
  std::string lines;
  for (int i = 0; i < 12; ++i) {
    const std::string question(static_cast<std::size_t>(2 + i * 7 % 20),
                               static_cast<char>('a' + i)),
        answer(static_cast<std::size_t>(2 + i * 5 % 22), static_cast<char>('A' + i));
    lines += "{\"prompt\": \"" + question + "\", \"completion\": \"" + answer + "\"}\n";
  }
  sortie::test::write_text(dir / "chat.jsonl", lines);
  return dir.str("chat.jsonl");
}

config::JobConfig packing_job(const std::string& architecture) {
  config::JobConfig job = family_job(architecture);
  job.model.vocab_size = 257;
  job.model.sequence_length = kLength;
  job.model.num_positions = 0;
  // Losses over the positions of a sequence count padding, too, so they are turned off.
  job.model.moe.bias_update_rate = job.model.moe.seq_aux_loss_coeff = job.model.moe.aux_loss_coeff =
      0.0;
  return job;
}

/// Returns the losses of steps that are one epoch each.
std::vector<double> epochs(config::JobConfig job, const std::string& file, bool packed) {
  job.data.pack_conversations = packed;
  const auto tokenizer = make_byte_tokenizer();
  auto source = ChatSource::open(job, {file}, *tokenizer, /*shuffle=*/true).value();
  CHECK(source->packed() == packed);
  job.topology.micro_batch_size = 1;
  job.topology.global_batch_size = source->samples_per_epoch();
  CHECK((job.topology.global_batch_size < 12) == packed);
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, DType::f32, 1, std::move(source));
  return training.losses(4);
}

}  // namespace

TEST_CASE("tight rows: the longest first, each into the fullest row with room") {
  const std::vector<std::int64_t> lengths = {4, 6, 10, 3, 7, 1, 4};
  CHECK(rows_of(pack_tightly(lengths, numbers_to(7), 10)) == Rows{{2}, {4, 3}, {1, 0}, {6, 5}});
  // Of equally long items, the first in order comes first.
  CHECK(rows_of(pack_tightly(lengths, std::vector<std::uint32_t>{6, 5, 4, 3, 2, 1, 0}, 10)) ==
        Rows{{2}, {4, 3}, {1, 6}, {0, 5}});
  CHECK(pack_tightly({}, {}, 10).size() == 0);
}

TEST_CASE("tight rows of many items are full, and have each item once") {
  constexpr std::int64_t kCapacity = 2048;
  std::vector<std::int64_t> lengths(20000);
  for (std::size_t i = 0; i < lengths.size(); ++i)  // many short ones, some as long as a row
    lengths[i] = 1 + static_cast<std::int64_t>(random_bits(3, i) % (i % 10 == 0 ? 2048 : 500));
  const PackedRows rows = pack_tightly(lengths, numbers_to(lengths.size()), kCapacity);
  std::vector<int> seen(lengths.size());
  std::int64_t all = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::int64_t used = 0;
    for (const std::uint32_t item : rows[row]) {
      ++seen[item];
      used += lengths[item];
    }
    CHECK(used <= kCapacity);
    all += used;
  }
  CHECK(std::ranges::all_of(seen, [](int times) { return times == 1; }));
  CHECK(static_cast<double>(all) >=
        0.995 * static_cast<double>(kCapacity) * static_cast<double>(rows.size()));
}

TEST_CASE("rows in order end where the next item does not fit") {
  const std::vector<std::int64_t> lengths = {4, 6, 10, 3, 7, 1, 4};
  CHECK(rows_of(pack_in_order(lengths, 10)) == Rows{{0, 1}, {2}, {3, 4}, {5, 6}});
  CHECK(pack_in_order({}, 10).size() == 0);
}

TEST_CASE("a packed sample has whole conversations, with a mark where another one begins") {
  const sortie::test::ScopedTempDir dir;
  sortie::test::write_text(
      dir / "chat.jsonl",
      "{\"prompt\": \"ab\", \"completion\": \"c\"}\n"
      "{\"messages\": [{\"role\": \"assistant\", \"content\": \"X\"}, {\"role\": \"user\", "
      "\"content\": \"nobody answers\"}]}\n"
      "{\"prompt\": \"d\", \"completion\": \"ef\"}\n"
      "{\"prompt\": \"g\", \"completion\": \"" +
          std::string(100, 'h') + "\"}\n");
  config::JobConfig job = tiny_job();
  job.model.vocab_size = 257;
  job.model.sequence_length = kLength;
  const auto tokenizer = make_byte_tokenizer();
  const auto source = ChatSource::open(job, {dir.str("chat.jsonl")}, *tokenizer, false).value();
  REQUIRE(source->samples_per_epoch() == 2);
  std::vector<std::int32_t> tokens(kLength), targets(kLength);
  const auto read = [&](std::int64_t index) {
    REQUIRE(source->sample(index, tokens, targets));
    std::string input, wanted;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      input += tokens[i] == 0 ? '_' : tokens[i] == 256 ? '$' : static_cast<char>(tokens[i]);
      wanted += targets[i] == ops::kNoTarget       ? '.'
                : targets[i] == ops::kDocumentEnds ? '|'
                : targets[i] == 256                ? '$'
                                                   : static_cast<char>(targets[i]);
    }
    return std::pair(input, wanted);
  };
  // Nothing after the last answer is read. The rest of the row is a separate document.
  CHECK(read(0) ==
        std::pair<std::string, std::string>("abc$<|im_start|>assistant\nX<|im_end|>def$_______",
                                            ".c$|.....................X<|im_end|>|ef$|......."));
  // A full row ends without a mark: one more token is its last target.
  CHECK(read(1) ==
        std::pair<std::string, std::string>("g" + std::string(47, 'h'), std::string(48, 'h')));
}

TEST_CASE("training on packed conversations is that on each of them alone") {
  const sortie::test::ScopedTempDir dir;
  const std::string file = write_conversations(dir);
  for (const Family& family : families()) {
    const std::string name(family.name);
    if (!sortie::test::every_case() && name != "llama" && name != "gpt2" && name != "gpt-neo" &&
        name != "deepseek-v3" && name != "mixtral")
      continue;
    CAPTURE(name);
    config::JobConfig job = packing_job(name);
    if (name == "gpt-neo") {
      job.model.attention_layers = {"local", "global"};
      job.model.attention_window = 5;
    }
    if (name == "llama") job.topology.activation_checkpointing_type = "every_layer";
    // Marks and document-end tokens together: positions continue across the latter.
    if (name == "gpt2") job.model.document_end_token = 'C';
    const auto packed = epochs(job, file, true), alone = epochs(job, file, false);
    CHECK(alone.back() < alone.front());
    for (std::size_t step = 0; step < alone.size(); ++step) {
      CAPTURE(step);
      CHECK(packed[step] == doctest::Approx(alone[step]).epsilon(2e-5));
    }
  }
}

TEST_CASE("validation on packed conversations has the loss of each of them alone") {
  const sortie::test::ScopedTempDir dir;
  const std::string file = write_conversations(dir);
  config::JobConfig job = packing_job("gpt2");
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  const auto tokenizer = make_byte_tokenizer();
  std::vector<double> losses;
  std::vector<std::int64_t> measures;
  for (const bool packed : {true, false}) {
    job.data.pack_conversations = packed;
    const auto source = ChatSource::open(job, {file}, *tokenizer, /*shuffle=*/false).value();
    const std::vector<ValidationSet> sets = {{"chat", source.get()}};
    measures.push_back(validation_measure(sets, job));
    losses.push_back(validate(sets, {.samples = 0, .rows = 3}, training.trainer->context(),
                              training.trainer->passes(), training.trainer->layout(),
                              *training.rank.marks)
                         .value()
                         .loss);
  }
  CHECK(losses[0] == doctest::Approx(losses[1]).epsilon(1e-6));
  // With eval_samples, they would be measures of different conversations.
  CHECK(measures[0] != measures[1]);
}
