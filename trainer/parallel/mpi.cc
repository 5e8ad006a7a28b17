// The MPI backend; the only file that includes mpi.h. Collectives are our own (operation.h): MPI
// only carries messages between two ranks.
#include <fmt/core.h>
#include <mpi.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "trainer/parallel/group_communicator.h"

namespace sortie::trainer {
namespace {

std::string mpi_text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<std::size_t>(length));
}

void check_mpi(int code, const char* operation) {
  if (code != MPI_SUCCESS)
    throw CommunicatorError(fmt::format("{}: {}", operation, mpi_text(code)));
}

/// What yields the core while nothing arrives, as configured for Open MPI.
enum class Yielding { ours, mpi, nobody };
Yielding who_yields() {
  const char* value = std::getenv("OMPI_MCA_mpi_yield_when_idle");
  if (value == nullptr || *value == '\0') return Yielding::ours;
  return std::string_view(value) == "0" ? Yielding::nobody : Yielding::mpi;
}

class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    // A separate communicator keeps these messages apart from all others in the process.
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    int *largest = nullptr, known = 0;
    check_mpi(MPI_Comm_get_attr(comm_, MPI_TAG_UB, &largest, &known), "MPI_Comm_get_attr");
    if (known == 0 || *largest < kMaxTag)
      throw CommunicatorError(
          fmt::format("tags up to {} are needed, {} has fewer", kMaxTag, MpiTransport::library()));
  }
  ~MpiTransport() override {
    MPI_Comm_free(&comm_);
    MPI_Finalize();
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string library() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    check_mpi(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
    // "Open MPI v4.1.4, package: Debian OpenMPI, ident: ..."; others end the first line there.
    const std::string_view version(text, static_cast<std::size_t>(length));
    return std::string(version.substr(0, version.find_first_of(",\n")));
  }

  void send(int to, int tag, std::span<const std::byte> bytes, Message& message) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(
        MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to, tag, comm_, &request),
        "MPI_Isend");
    add(request, {&message, bytes.size(), to, /*receives=*/false});
  }
  void receive(int from, int tag, std::span<std::byte> bytes, Message& message) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, from, tag, comm_,
                        &request),
              "MPI_Irecv");
    add(request, {&message, bytes.size(), from, /*receives=*/true});
  }

  void progress() override {
    if (requests_.empty()) return;
    const int count = static_cast<int>(requests_.size());
    int finished = 0;
    const int code =
        MPI_Testsome(count, requests_.data(), &finished, indices_.data(), statuses_.data());
    if (finished == MPI_UNDEFINED || finished == 0) {
      check_mpi(code, "MPI_Testsome");
      return;
    }
    for (int i = 0; i < finished; ++i) {
      const Posted& one = posted_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])];
      check_status(code, one, statuses_[static_cast<std::size_t>(i)]);
      one.message->state.store(Message::State::done, std::memory_order_relaxed);
      ++completed_;
    }
    drop_finished();
  }
  std::uint64_t completed() const override { return completed_; }

  void pause(std::chrono::nanoseconds idle) override {
    // MPI_Testsome checks requests before it makes progress: only the next call sees what has
    // arrived.
    look_again_ = !look_again_;
    if (look_again_) return;
    // Open MPI can not sleep until something arrives. Ranks that share cores must yield them to
    // each other, and a long wait needs no fast response. Sleeping for 50 us from the start, or
    // yielding in addition to MPI, makes small all-reduces 1.5 to 4 times as slow on shared cores.
    // If the runner has found that ranks outnumber cores (MPI yields then), long polling takes time
    // from ranks that compute: a yield does not give the core to processes of other sessions.
    const std::chrono::milliseconds spin{yielding_ == Yielding::mpi ? 2 : 20};
    constexpr std::chrono::microseconds kNap{100};
    if (idle >= spin)
      std::this_thread::sleep_for(kNap);
    else if (yielding_ == Yielding::ours)
      std::this_thread::yield();
  }

  void withdraw(Message& message) override {
    // MPI can not cancel what it has begun. The process is about to end: the request is left as it
    // is, and MPI is not called again except to abort.
    for (std::size_t i = 0; i < posted_.size(); ++i) {
      if (posted_[i].message != &message) continue;
      requests_[i] = MPI_REQUEST_NULL;
      drop_finished();
      return;
    }
  }
  std::string fate_of(int) const override { return {}; }
  void abort(int exit_code) override {
    MPI_Abort(comm_, exit_code);
    std::_Exit(exit_code);  // MPI_Abort is not declared noreturn
  }

 private:
  struct Posted {
    Message* message;
    std::size_t bytes;
    int peer;
    bool receives;
  };
  void add(MPI_Request request, const Posted& posted) {
    requests_.push_back(request);
    posted_.push_back(posted);
    indices_.resize(requests_.size());
    statuses_.resize(requests_.size());
  }
  /// Removes completed requests, which are null, and fills their places from the end.
  void drop_finished() {
    for (std::size_t i = 0; i < requests_.size();) {
      if (requests_[i] != MPI_REQUEST_NULL) {
        ++i;
        continue;
      }
      requests_[i] = requests_.back();
      posted_[i] = posted_.back();
      requests_.pop_back();
      posted_.pop_back();
    }
  }
  static void check_status(int code, const Posted& one, const MPI_Status& status) {
    if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS &&
        status.MPI_ERROR != MPI_ERR_PENDING)
      throw CommunicatorError(fmt::format("a message {} rank {}: {}", one.receives ? "from" : "to",
                                          one.peer, mpi_text(status.MPI_ERROR)));
    if (!one.receives) return;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (static_cast<std::size_t>(bytes) != one.bytes)
      throw CommunicatorError(
          fmt::format("rank {} sent {} bytes, expected {}", one.peer, bytes, one.bytes));
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 0;
  std::uint64_t completed_ = 0;
  bool look_again_ = false;
  const Yielding yielding_ = who_yields();
  std::vector<MPI_Request> requests_;  // in flight
  std::vector<Posted> posted_;         // of each
  std::vector<int> indices_;           // for MPI_Testsome
  std::vector<MPI_Status> statuses_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> make_mpi_communicator(int expected_rank, int expected_size) {
  int provided = 0;
  // FUNNELED: only the trainer's main thread calls MPI; compute threads never do.
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
    return fail(ErrorCode::unsupported, "MPI: MPI_Init failed; see the messages of Open MPI above");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank != expected_rank || size != expected_size) {
    MPI_Finalize();
    return fail(ErrorCode::unsupported,
                fmt::format("MPI: this process is rank {} of {} for MPI, but RANK={} and "
                            "WORLD_SIZE={}: the ranks were "
                            "not wired up; is libpmix (Debian: libpmix2) installed on every host?",
                            rank, size, expected_rank, expected_size));
  }
  try {
    return std::make_unique<GroupCommunicator>(std::make_unique<MpiTransport>());
  } catch (const CommunicatorError& error) {
    return fail(ErrorCode::unsupported, fmt::format("MPI: {}", error.what()));
  }
}

}  // namespace sortie::trainer
