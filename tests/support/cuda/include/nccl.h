// NCCL for tests on machines without a GPU: the part of its API that Sortie uses, between ranks of
// emulated GPUs, which are threads of one process or processes. What ranks of a communicator ask
// for has to agree in operation, count and type: here a difference is an error, where NCCL would
// hang. Sums are taken around a ring, bf16 with a rounding at each step, as NCCL does.
//
// As NCCL 2.28.9 does with communicators that do not block: a call goes on in the background, as
// ncclCommGetAsyncError is asked, and only its end gives the stream something to do; the first one
// of a communicator, or of a pair, waits for the other ranks. One thread at a time may be in calls
// of a communicator. ncclCommAbort waits for all that its GPU was given, and frees the
// communicator; those of a group of calls are all aborted before one of them waits.
//
// SORTIE_EMULATED_NCCL_FAULT=KIND:RANK:NUMBER breaks operation NUMBER (from 0) of that rank of the
// world: "error", an asynchronous one of its communicator; "hang", it never begins; "connect", its
// call goes on for ever; "kill", "stop" and "exit", its process is killed, is stopped (SIGSTOP) or
// exits with 0 as it begins. "split" is for a split, whose call goes on for ever.
// SORTIE_EMULATED_NCCL_CALL_MS: how long a thread is in each call.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstddef>

// NOLINTBEGIN: the names are NCCL's.
struct ncclComm;
using ncclComm_t = ncclComm*;
struct ncclUniqueId {
  char internal[128];
};
enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};
enum ncclDataType_t {
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt64 = 4,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
};
enum ncclRedOp_t { ncclSum = 0, ncclMax = 2 };

struct ncclConfig_t {
  int blocking;
  const char* commName;
};
#define NCCL_CONFIG_INITIALIZER \
  { INT_MIN, nullptr }
#define NCCL_SPLIT_NOCOLOR -1

ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank);
ncclResult_t ncclCommCount(ncclComm_t comm, int* count);

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
// NOLINTEND
