#include "trainer/cli/open_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/config/architectures.h"
#include "common/config/validation_sets.h"
#include "trainer/samples/chat_source.h"
#include "trainer/samples/dataset_source.h"

namespace sortie::trainer {
namespace {

template <class T>
Result<T> of_key(std::string_view key, Result<T> result) {
  if (result) return result;
  return std::unexpected(with_context(std::move(result).error(), key));
}

/// Describes what was cut or left out. Empty if nothing was.
std::string cuts_of(const ChatSource::Count& count, std::string_view key, std::int64_t length) {
  if (count.lost_tokens == 0 && count.cut == 0 && count.left_out == 0) return {};
  return fmt::format(
      "{}: of {} conversations {} are cut to model.sequence_length = {} tokens and {} are left "
      "out, which have no answer in them; {} of {} answer tokens are lost",
      key, count.conversations, count.cut, length, count.left_out, count.lost_tokens,
      count.answer_tokens);
}

std::string rows_of(const ChatSource& source, std::string_view key, std::int64_t length) {
  const ChatSource::Count& count = source.count();
  return fmt::format(
      "{}: {} conversations in {} sequences of {} tokens; {:.0f} % of these are padding", key,
      count.conversations - count.left_out, source.samples_per_epoch(), length,
      100 * source.padding());
}

/// Describes padding that affects the balance of experts, which counts every position. Empty if it
/// does not matter.
std::string padding_of(const ChatSource& source, std::string_view key,
                       const config::ModelConfig& model) {
  constexpr double kLittle = 0.05;
  const config::MoeConfig& moe = model.moe;
  const bool balanced =
      config::architecture_of(model).mixture &&
      (moe.aux_loss_coeff > 0 || moe.seq_aux_loss_coeff > 0 || moe.bias_update_rate > 0);
  const double padding = balanced ? source.padding() : 0.0;
  if (padding < kLittle) return {};
  return fmt::format(
      "{}: {:.0f} % of the positions are padding, which counts when the experts are balanced "
      "(model.moe.aux_loss_coeff, seq_aux_loss_coeff, bias_update_rate); {}, or set these keys to "
      "0",
      key, 100 * padding,
      source.packed() ? "use a model.sequence_length near the length of the conversations"
                      : "set data.pack_conversations = true");
}

class Opener {
 public:
  Opener(const config::JobConfig& job, int threads, const OnProgress& progress, OpenedData& opened)
      : job_(job), threads_(threads), progress_(progress), opened_(opened) {}

  Result<std::unique_ptr<ChatSource>> chats(std::string_view key,
                                            const std::vector<std::string>& files, bool shuffle) {
    SORTIE_ASSIGN_OR_RETURN(const auto tokenizer,
                            of_key("data.tokenizer", make_tokenizer(job_.data.tokenizer)));
    SORTIE_ASSIGN_OR_RETURN(
        auto source, ChatSource::open(job_, files, *tokenizer, shuffle, threads_, progress_));
    if (std::string text = cuts_of(source->count(), key, job_.model.sequence_length); !text.empty())
      opened_.notes.push_back(std::move(text));
    if (std::string text = source->missing_ends(*tokenizer); !text.empty())
      opened_.notes.push_back(fmt::format("{}: {}", key, text));
    opened_.reads_chatml = opened_.reads_chatml || source->chatml();
    return source;
  }

  Result<std::unique_ptr<SampleSource>> training(const config::BatchPlan& batch,
                                                 std::int64_t sites) {
    constexpr std::string_view kChats = "data.chat_files";
    if (!job_.data.chat_files.empty()) {
      SORTIE_ASSIGN_OR_RETURN(
          auto source, of_key(kChats, chats(kChats, job_.data.chat_files, /*shuffle=*/true)));
      opened_.notes.push_back(rows_of(*source, kChats, job_.model.sequence_length));
      if (std::string text = padding_of(*source, kChats, job_.model); !text.empty())
        opened_.notes.push_back(std::move(text));
      return source;
    }
    DatasetSource::Course course;
    course.samples =
        static_cast<std::uint64_t>(config::samples_of_steps(batch, job_.trainer.train_iterations)) *
        static_cast<std::uint64_t>(std::max<std::int64_t>(sites, 1));
    // Samples granted to a site that was lost are not granted again, so the run takes more of them.
    if (sites > 0) course.samples += course.samples / 4;
    course.micro_step =
        static_cast<std::uint64_t>(batch.micro_batch_size * batch.data_parallel_size);
    return of_key("data.data_prefixes", DatasetSource::open_training(job_, course));
  }

  Result<std::unique_ptr<SampleSource>> validation(const config::ValidationSet& set) {
    if (!set.chat_files.empty()) return chats(set.key, set.chat_files, /*shuffle=*/false);
    return DatasetSource::open_validation(job_, set.prefixes);
  }

 private:
  const config::JobConfig& job_;
  int threads_;
  const OnProgress& progress_;
  OpenedData& opened_;
};

}  // namespace

Result<OpenedData> open_data(const config::JobConfig& job, const config::BatchPlan& batch,
                             std::int64_t sites, int threads, const OnProgress& progress) {
  OpenedData opened;
  Opener opener(job, threads, progress, opened);
  SORTIE_ASSIGN_OR_RETURN(opened.training, opener.training(batch, sites));
  opened.trains_chatml = opened.reads_chatml;
  if (job.trainer.eval_interval == 0) return opened;  // no validation: the sets are not read
  for (const config::ValidationSet& set : config::validation_sets(job.data)) {
    SORTIE_ASSIGN_OR_RETURN(auto source, of_key(set.key, opener.validation(set)));
    opened.validation_sets.push_back({set.name, source.get()});
    opened.validation.push_back(std::move(source));
  }
  return opened;
}

}  // namespace sortie::trainer
