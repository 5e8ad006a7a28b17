// Names that ranks publish and look up, and the refusal of MPI_Comm_spawn.
#include <fmt/core.h>

#include "common/wire/frame.h"
#include "runner/pmix/server.h"

namespace sortie::runner {
namespace {
/// Limit of a request's size, so that it fits into a frame with the other fields.
constexpr std::size_t kMaxQuestion = wire::kMaxPayloadBytes - (1u << 20);
}  // namespace

Result<> PmixServer::on(NamesAsked& asked) {
  std::size_t bytes = 0;
  for (const auto* list : {&asked.question.keys, &asked.question.values})
    for (const std::string& text : *list) bytes += text.size() + 16;
  if (bytes > kMaxQuestion) {
    wire::PmixNamesDone refused;
    refused.status = PMIX_ERR_OUT_OF_RESOURCE;
    answer_names(asked, refused, nspace_);
    return {};
  }
  asked.question.id = next_names_id_++;
  Result<> sent = pipe_->send(asked.question);
  names_[asked.question.id] = std::move(asked);
  return sent;
}

Result<> PmixServer::on(wire::PmixNamesDone& done) {
  const auto found = names_.find(done.id);
  if (found == names_.end())
    return fail(ErrorCode::protocol, fmt::format("no question {} about names is open", done.id));
  const NamesAsked asked = std::move(found->second);
  names_.erase(found);
  answer_names(asked, done, nspace_);
  return {};
}

Result<> PmixServer::on(SpawnRefused& refused) {
  return pipe_->send(wire::PmixNotice{
      refused.rank,
      "MPI_Comm_spawn was refused: Sortie starts all ranks itself; ask for them with --slots or "
      "runner.hosts"});
}

}  // namespace sortie::runner
