#include "runner/pmix/upcalls.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "common/base/check.h"

namespace sortie::runner {
namespace {

// libpmix passes no host pointer to most upcalls, so the only server of this process is stored
// here.
UpcallQueue* server_queue = nullptr;
std::string server_nspace;

bool is_ours(const pmix_proc_t& proc) {
  return server_nspace == proc.nspace;
}

/// Completes an upcall that needs nothing of the main thread.
pmix_status_t complete(pmix_op_cbfunc_t done, void* done_data) {
  // Newer libraries pass no callback, because the return value suffices.
  if (!done) return PMIX_OPERATION_SUCCEEDED;
  done(PMIX_SUCCESS, done_data);
  return PMIX_SUCCESS;
}

pmix_status_t on_connected(const pmix_proc_t* proc, void*, pmix_op_cbfunc_t done, void* done_data) {
  if (is_ours(*proc)) server_queue->push(ClientChanged{proc->rank, true});
  return complete(done, done_data);
}
pmix_status_t on_finalized(const pmix_proc_t* proc, void*, pmix_op_cbfunc_t done, void* done_data) {
  if (is_ours(*proc)) server_queue->push(ClientChanged{proc->rank, false});
  return complete(done, done_data);
}

pmix_status_t on_abort(const pmix_proc_t* proc, void*, int status, const char message[],
                       pmix_proc_t[], std::size_t, pmix_op_cbfunc_t done, void* done_data) {
  server_queue->push(AbortCalled{proc->rank, status, message ? message : "", done, done_data});
  return PMIX_SUCCESS;
}

pmix_status_t on_fence(const pmix_proc_t procs[], std::size_t count, const pmix_info_t[],
                       std::size_t, char* data, std::size_t size, pmix_modex_cbfunc_t done,
                       void* done_data) {
  FenceEntered fence;
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_ours(procs[i])) return PMIX_ERR_NOT_SUPPORTED;
    fence.ranks.push_back(procs[i].rank);
  }
  if (data) {
    fence.data.assign(data, size);
    std::free(data);  // libpmix has passed ownership of the blob
  }
  fence.done = done;
  fence.done_data = done_data;
  server_queue->push(std::move(fence));
  return PMIX_SUCCESS;
}

/// PMIX_TIMEOUT has whatever integer type the program used.
std::uint32_t seconds_of(const pmix_value_t& value) {
  switch (value.type) {
    case PMIX_INT:
      return value.data.integer > 0 ? static_cast<std::uint32_t>(value.data.integer) : 0;
    case PMIX_INT32:
      return value.data.int32 > 0 ? static_cast<std::uint32_t>(value.data.int32) : 0;
    case PMIX_UINT:
      return value.data.uint;
    case PMIX_UINT32:
      return value.data.uint32;
    default:
      return 0;
  }
}

pmix_status_t on_direct_modex(const pmix_proc_t* proc, const pmix_info_t info[], std::size_t count,
                              pmix_modex_cbfunc_t done, void* done_data) {
  if (!is_ours(*proc)) return PMIX_ERR_NOT_FOUND;
  ModexWanted wanted;
  wanted.rank = proc->rank;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view key = info[i].key;
    if (key == PMIX_REQUIRED_KEY && info[i].value.type == PMIX_STRING && info[i].value.data.string)
      wanted.key = info[i].value.data.string;
    else if (key == PMIX_TIMEOUT)
      wanted.timeout_s = seconds_of(info[i].value);
  }
  wanted.done = done;
  wanted.done_data = done_data;
  server_queue->push(std::move(wanted));
  return PMIX_SUCCESS;
}

/// Whether the key is a directive of PMIx rather than a name that a program publishes.
bool is_directive(const char* key) {
  return std::string_view(key).starts_with("pmix.");
}

pmix_status_t on_publish(const pmix_proc_t* proc, const pmix_info_t info[], std::size_t count,
                         pmix_op_cbfunc_t done, void* done_data) {
  NamesAsked asked;
  asked.question.rank = proc->rank;
  asked.question.action = wire::PmixNames::Action::publish;
  for (std::size_t i = 0; i < count; ++i) {
    if (is_directive(info[i].key)) continue;
    // Other types would need a wire format; MPI publishes strings.
    if (info[i].value.type != PMIX_STRING || !info[i].value.data.string)
      return PMIX_ERR_NOT_SUPPORTED;
    asked.question.keys.emplace_back(info[i].key);
    asked.question.values.emplace_back(info[i].value.data.string);
  }
  asked.done = done;
  asked.done_data = done_data;
  server_queue->push(std::move(asked));
  return PMIX_SUCCESS;
}

std::vector<std::string> listed(char** keys) {
  std::vector<std::string> list;
  for (char** key = keys; key && *key; ++key) list.emplace_back(*key);
  return list;
}

pmix_status_t on_lookup(const pmix_proc_t* proc, char** keys, const pmix_info_t info[],
                        std::size_t count, pmix_lookup_cbfunc_t done, void* done_data) {
  NamesAsked asked;
  asked.question.rank = proc->rank;
  asked.question.action = wire::PmixNames::Action::lookup;
  asked.question.keys = listed(keys);
  for (std::size_t i = 0; i < count; ++i)  // an int: how many to wait for; Open MPI wants all
    if (std::string_view(info[i].key) == PMIX_WAIT) asked.question.wait = 1;
  asked.lookup_done = done;
  asked.done_data = done_data;
  server_queue->push(std::move(asked));
  return PMIX_SUCCESS;
}

pmix_status_t on_unpublish(const pmix_proc_t* proc, char** keys, const pmix_info_t[], std::size_t,
                           pmix_op_cbfunc_t done, void* done_data) {
  NamesAsked asked;
  asked.question.rank = proc->rank;
  asked.question.action = wire::PmixNames::Action::unpublish;
  asked.question.keys = listed(keys);
  asked.done = done;
  asked.done_data = done_data;
  server_queue->push(std::move(asked));
  return PMIX_SUCCESS;
}
pmix_status_t refuse_spawn(const pmix_proc_t* proc, const pmix_info_t[], std::size_t,
                           const pmix_app_t[], std::size_t, pmix_spawn_cbfunc_t, void*) {
  server_queue->push(SpawnRefused{proc->rank});
  return PMIX_ERR_NOT_SUPPORTED;
}
pmix_status_t refuse_connect(const pmix_proc_t[], std::size_t, const pmix_info_t[], std::size_t,
                             pmix_op_cbfunc_t, void*) {
  return PMIX_ERR_NOT_SUPPORTED;
}

/// Refuses, but must exist: without this entry libpmix also skips its own part of the request,
/// which is to remove Open MPI's files in /dev/shm when their rank is gone.
pmix_status_t refuse_job_control(const pmix_proc_t*, const pmix_proc_t[], std::size_t,
                                 const pmix_info_t[], std::size_t, pmix_info_cbfunc_t, void*) {
  return PMIX_ERR_NOT_SUPPORTED;
}

}  // namespace

Result<UpcallQueue*> UpcallQueue::create() {
  Fd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return std::unexpected(os_error(errno, "eventfd"));
  return new UpcallQueue(std::move(event));
}

void UpcallQueue::push(Upcall upcall) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(upcall));
  }
  const std::uint64_t one = 1;
  const ssize_t written = write(event_.get(), &one, sizeof one);
  SORTIE_CHECK(written == sizeof one, "eventfd: errno {}", errno);
}

std::vector<Upcall> UpcallQueue::take_all() {
  std::uint64_t count = 0;
  (void)!read(event_.get(), &count, sizeof count);  // if it is empty: EAGAIN, and nothing is queued
  const std::lock_guard lock(mutex_);
  return std::exchange(waiting_, {});
}

pmix_server_module_t* make_server_module(UpcallQueue& queue, const std::string& nspace) {
  SORTIE_CHECK(!server_queue, "second server module");
  server_queue = &queue;
  server_nspace = nspace;
  // A newer library copies more entries than this header knows, so zeros must follow.
  static union {
    pmix_server_module_t module;
    void* room[128];
  } table = {};
  static_assert(sizeof(pmix_server_module_t) <= 64 * sizeof(void*));
  pmix_server_module_t& module = table.module;
  module.client_connected = on_connected;
  module.client_finalized = on_finalized;
  module.abort = on_abort;
  module.fence_nb = on_fence;
  module.direct_modex = on_direct_modex;
  module.publish = on_publish;
  module.lookup = on_lookup;
  module.unpublish = on_unpublish;
  module.spawn = refuse_spawn;
  module.connect = refuse_connect;
  module.disconnect = refuse_connect;
  module.job_control = refuse_job_control;
  return &module;
}

void answer_modex(pmix_modex_cbfunc_t done, void* done_data, pmix_status_t status,
                  std::string data) {
  if (!done) return;
  auto kept = std::make_unique<std::string>(std::move(data));
  const char* bytes = kept->empty() ? nullptr : kept->data();
  const std::size_t size = kept->size();
  done(
      status, bytes, size, done_data, [](void* owned) { delete static_cast<std::string*>(owned); },
      kept.release());
}

void answer_names(const NamesAsked& asked, const wire::PmixNamesDone& answer,
                  const std::string& nspace) {
  if (asked.done) asked.done(answer.status, asked.done_data);
  if (!asked.lookup_done) return;
  const std::size_t count =
      std::min({answer.keys.size(), answer.values.size(), answer.ranks.size()});
  // libpmix copies these before the callback returns.
  std::vector<pmix_pdata_t> found(count);
  for (std::size_t i = 0; i < count; ++i) {
    pmix_pdata_t& data = found[i];
    std::memset(&data, 0, sizeof data);
    std::memcpy(data.proc.nspace, nspace.data(),
                std::min<std::size_t>(nspace.size(), PMIX_MAX_NSLEN));
    data.proc.rank = answer.ranks[i];
    std::memcpy(data.key, answer.keys[i].data(),
                std::min<std::size_t>(answer.keys[i].size(), PMIX_MAX_KEYLEN));
    data.value.type = PMIX_STRING;
    data.value.data.string = const_cast<char*>(answer.values[i].c_str());
  }
  asked.lookup_done(answer.status, found.data(), count, asked.done_data);
}

void on_pmix_event(std::size_t, pmix_status_t, const pmix_proc_t*, pmix_info_t[], std::size_t,
                   pmix_info_t[], std::size_t, pmix_event_notification_cbfunc_fn_t done,
                   void* done_data) {
  if (done) done(PMIX_EVENT_ACTION_COMPLETE, nullptr, 0, nullptr, nullptr, done_data);
}

}  // namespace sortie::runner
