// Requests of libpmix to its host, passed from libpmix's threads to the main thread. The functions
// in the module never block and never access the server's state: they queue an Upcall and return.
#pragma once

#include <pmix_server.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/wire/message.h"

namespace sortie::runner {

/// All local participants have entered a fence. `done` expects the data of every host.
struct FenceEntered {
  std::vector<pmix_rank_t> ranks;  // a single PMIX_RANK_WILDCARD = the whole job
  std::string data;
  pmix_modex_cbfunc_t done = nullptr;
  void* done_data = nullptr;
};
/// A local rank needs data that a rank of another host has published.
struct ModexWanted {
  pmix_rank_t rank = 0;
  std::string key;              // the requested key; empty: any
  std::uint32_t timeout_s = 0;  // 0 = none
  pmix_modex_cbfunc_t done = nullptr;
  void* done_data = nullptr;
};
/// libpmix's answer to our get_nb: whether the rank has committed the key.
struct KeyLooked {
  std::uint64_t id = 0;
  bool found = false;
};
/// A local rank has initialised or finalized PMIx.
struct ClientChanged {
  pmix_rank_t rank = 0;
  bool connected = false;
};
/// libpmix's answer to our dmodex_request.
struct ModexFound {
  std::uint64_t id = 0;
  pmix_status_t status = 0;
  std::string data;
};
struct AbortCalled {
  pmix_rank_t rank = 0;
  int status = 0;
  std::string message;
  pmix_op_cbfunc_t done = nullptr;
  void* done_data = nullptr;
};
/// A local rank publishes, looks up or unpublishes names. One of the two callbacks is set.
struct NamesAsked {
  wire::PmixNames question;
  pmix_op_cbfunc_t done = nullptr;
  pmix_lookup_cbfunc_t lookup_done = nullptr;
  void* done_data = nullptr;
};
/// A rank requested more processes and was refused.
struct SpawnRefused {
  pmix_rank_t rank = 0;
};
using Upcall = std::variant<FenceEntered, ModexWanted, KeyLooked, ClientChanged, ModexFound,
                            AbortCalled, NamesAsked, SpawnRefused>;

/// Queue with many writers and one reader, which polls fd(). Thread-safe.
class UpcallQueue {
 public:
  static Result<UpcallQueue*> create();  // lives as long as the process, like libpmix's threads

  void push(Upcall upcall);
  std::vector<Upcall> take_all();
  int fd() const { return event_.get(); }

 private:
  explicit UpcallQueue(Fd event) : event_(std::move(event)) {}

  std::mutex mutex_;
  std::vector<Upcall> waiting_;
  Fd event_;
};

/// The table for PMIx_server_init. Fences and direct modexes of other namespaces than `nspace` are
/// refused. Spawn and connect fail with PMIX_ERR_NOT_SUPPORTED, so that a rank that calls
/// MPI_Comm_spawn gets an error and does not hang. Call once; `queue` must never be destroyed.
pmix_server_module_t* make_server_module(UpcallQueue& queue, const std::string& nspace);

/// Calls `done` with a copy of `data`, which libpmix releases after reading it.
void answer_modex(pmix_modex_cbfunc_t done, void* done_data, pmix_status_t status,
                  std::string data);

/// Passes the launcher's answer to the callback in `asked`.
void answer_names(const NamesAsked& asked, const wire::PmixNamesDone& answer,
                  const std::string& nspace);

/// Default event handler: marks the event as handled.
void on_pmix_event(std::size_t handler, pmix_status_t status, const pmix_proc_t* source,
                   pmix_info_t info[], std::size_t info_count, pmix_info_t results[],
                   std::size_t result_count, pmix_event_notification_cbfunc_fn_t done,
                   void* done_data);

}  // namespace sortie::runner
