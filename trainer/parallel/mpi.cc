// The MPI backend; the only file that includes mpi.h.
#include <fmt/core.h>
#include <mpi.h>

#include <cstdlib>
#include <limits>
#include <thread>

#include "common/base/check.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {
namespace {

void check_mpi(int code, const char* operation) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommunicatorError(
      fmt::format("{}: {}", operation, std::string_view(text, static_cast<std::size_t>(length))));
}

int mpi_count(std::size_t count) {
  SORTIE_CHECK(count <= static_cast<std::size_t>(std::numeric_limits<int>::max()), "{} elements",
               count);
  return static_cast<int>(count);
}

class MpiHandle final : public CollectiveHandle {
 public:
  MPI_Request request = MPI_REQUEST_NULL;

  ~MpiHandle() override {
    // Its buffer must not be freed under it, and waiting could take for ever: a rank that fails in
    // mid-step ends its process instead (trainer/loop/rank_end.h).
    SORTIE_CHECK(request == MPI_REQUEST_NULL, "a collective is dropped while it is in flight");
  }
  bool poll() override {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  }
  void wait() override { check_mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait"); }
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator() {
    // A communicator of our own keeps our collectives apart from everyone else's in the process.
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &end_), "MPI_Comm_dup");
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  }
  ~MpiCommunicator() override {
    MPI_Comm_free(&end_);
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

  std::unique_ptr<CollectiveHandle> all_reduce_sum_async(std::span<float> values) override {
    auto handle = std::make_unique<MpiHandle>();
    check_mpi(MPI_Iallreduce(MPI_IN_PLACE, values.data(), mpi_count(values.size()), MPI_FLOAT,
                             MPI_SUM, comm_, &handle->request),
              "MPI_Iallreduce");
    return handle;
  }
  void all_reduce_sum(std::span<double> values) override {
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, values.data(), mpi_count(values.size()), MPI_DOUBLE,
                            MPI_SUM, comm_),
              "MPI_Allreduce");
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    constexpr std::size_t kPiece = 1u << 30;  // MPI counts are int
    for (std::size_t begin = 0; begin < bytes.size(); begin += kPiece) {
      const auto piece = bytes.subspan(begin, std::min(kPiece, bytes.size() - begin));
      check_mpi(MPI_Bcast(piece.data(), mpi_count(piece.size()), MPI_BYTE, root, comm_),
                "MPI_Bcast");
    }
  }
  std::vector<std::string> all_gather(std::string_view text) override {
    const int length = mpi_count(text.size());
    std::vector<int> lengths(static_cast<std::size_t>(size_));
    check_mpi(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm_),
              "MPI_Allgather");
    std::vector<int> begins(lengths.size());
    int total = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      begins[i] = total;
      total += lengths[i];
    }
    std::string all(static_cast<std::size_t>(total), '\0');
    check_mpi(MPI_Allgatherv(text.data(), length, MPI_BYTE, all.data(), lengths.data(),
                             begins.data(), MPI_BYTE, comm_),
              "MPI_Allgatherv");
    std::vector<std::string> out;
    for (std::size_t i = 0; i < lengths.size(); ++i)
      out.push_back(
          all.substr(static_cast<std::size_t>(begins[i]), static_cast<std::size_t>(lengths[i])));
    return out;
  }
  void barrier() override { check_mpi(MPI_Barrier(comm_), "MPI_Barrier"); }

  bool meet(std::chrono::milliseconds limit) override {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Ibarrier(end_, &request) != MPI_SUCCESS) return false;
    for (;;) {
      int done = 0;
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
      if (done != 0) return true;
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  void abort(int exit_code) override {
    MPI_Abort(comm_, exit_code);
    std::_Exit(exit_code);  // MPI_Abort is not declared to stay away
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Comm end_ = MPI_COMM_NULL;  // for meet() alone, so that it matches no collective of comm_
  int rank_ = 0, size_ = 0;
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
    return std::make_unique<MpiCommunicator>();
  } catch (const CommunicatorError& error) {
    return fail(ErrorCode::unsupported, fmt::format("MPI: {}", error.what()));
  }
}

}  // namespace sortie::trainer
