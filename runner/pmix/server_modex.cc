// Direct modex: requests of local ranks for data of other hosts' ranks, and requests of other hosts
// for data of local ranks.
#include <fmt/core.h>

#include <memory>

#include "runner/pmix/server.h"

namespace sortie::runner {

Result<> PmixServer::on(ModexWanted& wanted) {
  if (wanted.rank >= job_.world_size() || job_.is_local(wanted.rank)) {
    answer_modex(wanted.done, wanted.done_data, PMIX_ERR_NOT_FOUND, {});
    return {};
  }
  const std::uint64_t id = next_modex_id_++;
  modexes_[id] = {wanted.done, wanted.done_data};
  return pipe_->send(
      wire::PmixModexRequest{id, wanted.rank, std::move(wanted.key), wanted.timeout_s});
}

Result<> PmixServer::on(wire::PmixModexReply& reply) {
  const auto found = modexes_.find(reply.id);
  if (found == modexes_.end())
    return fail(ErrorCode::protocol, fmt::format("no modex {} is waiting", reply.id));
  const Waiting waiting = found->second;
  modexes_.erase(found);
  answer_modex(waiting.done, waiting.done_data, reply.status, std::move(reply.data));
  return {};
}

Result<> PmixServer::on(wire::PmixModexRequest& request) {
  if (!job_.is_local(request.rank))
    return pipe_->send(
        wire::PmixModexReply{request.id, request.rank, PMIX_ERR_NOT_FOUND, std::string()});
  return take(direct_modex_.ask(request, std::chrono::steady_clock::now()));
}

Result<> PmixServer::on(KeyLooked& looked) {
  return take(direct_modex_.on_looked(looked.id, looked.found, std::chrono::steady_clock::now()));
}

Result<> PmixServer::on(ModexFound& found) {
  if (found.data.size() > kMaxBlob) {
    found.data.clear();
    found.status = PMIX_ERR_OUT_OF_RESOURCE;
  }
  return take(direct_modex_.on_fetched(found.id, found.status, std::move(found.data)));
}

Result<> PmixServer::on(ClientChanged& changed) {
  if (!changed.connected) {
    initialised_.erase(changed.rank);
    return take(direct_modex_.on_finalized(changed.rank, std::chrono::steady_clock::now()));
  }
  initialised_.insert(changed.rank);
  direct_modex_.on_connected(changed.rank);
  return {};
}

Result<> PmixServer::handle_due() {
  return take(direct_modex_.due(std::chrono::steady_clock::now()));
}

/// The result of a look or a fetch arrives as an upcall, even if libpmix refuses it.
Result<> PmixServer::take(DirectModex::Steps steps) {
  for (const DirectModex::Look& one : steps.look) look(one);
  for (const DirectModex::Fetch& one : steps.fetch) fetch(one);
  for (wire::PmixModexReply& reply : steps.reply) SORTIE_TRY(pipe_->send(std::move(reply)));
  return {};
}

void PmixServer::look(const DirectModex::Look& look) {
  // libpmix reads proc and key until the callback.
  struct Looking {
    UpcallQueue* queue;
    std::uint64_t id;
    pmix_proc_t proc;
    std::string key;
  };
  auto looking = std::make_unique<Looking>(Looking{queue_, look.id, proc(look.rank), look.key});
  const pmix_status_t status = pmix_.get_nb(
      &looking->proc, looking->key.c_str(), nullptr, 0,
      [](pmix_status_t result, pmix_value_t*, void* context) {
        const std::unique_ptr<Looking> owned(static_cast<Looking*>(context));
        owned->queue->push(KeyLooked{owned->id, result == PMIX_SUCCESS});
      },
      looking.get());
  if (status == PMIX_SUCCESS)
    (void)looking.release();
  else
    queue_->push(KeyLooked{look.id, false});
}

void PmixServer::fetch(const DirectModex::Fetch& fetch) {
  struct Asked {
    UpcallQueue* queue;
    std::uint64_t id;
  };
  auto asked = std::make_unique<Asked>(Asked{queue_, fetch.id});
  const pmix_proc_t target = proc(fetch.rank);
  const pmix_status_t status = pmix_.dmodex_request(
      &target,
      [](pmix_status_t result, char* data, std::size_t size, void* context) {
        const std::unique_ptr<Asked> owned(static_cast<Asked*>(context));
        ModexFound found{owned->id, result, {}};
        if (data) found.data.assign(data, size);
        owned->queue->push(std::move(found));
      },
      asked.get());
  if (status == PMIX_SUCCESS)
    (void)asked.release();
  else
    queue_->push(ModexFound{fetch.id, status, {}});
}

}  // namespace sortie::runner
