// Names of keys of [topology] that several rules use in messages.
#pragma once

namespace sortie::config {

inline constexpr const char* kTensor = "topology.tensor_parallel_size";
inline constexpr const char* kSequence = "topology.sequence_parallel";
inline constexpr const char* kContext = "topology.context_parallel_size";
inline constexpr const char* kStages = "topology.pipeline_parallel_size";
inline constexpr const char* kStageLayers = "topology.pipeline_stage_layers";
inline constexpr const char* kExperts = "topology.expert_parallel_size";
inline constexpr const char* kExpertTensor = "topology.expert_tensor_parallel_size";
inline constexpr const char* kSharding = "topology.parameter_sharding";
inline constexpr const char* kInterleave = "topology.pipeline_interleave";
inline constexpr const char* kSchedule = "topology.pipeline_schedule";
inline constexpr const char* kCheckpointing = "topology.activation_checkpointing_type";
inline constexpr const char* kMicro = "topology.micro_batch_size";
inline constexpr const char* kAccumulation = "topology.gradient_accumulation_steps";
inline constexpr const char* kGlobal = "topology.global_batch_size";
inline constexpr const char* kDataParallel = "topology.data_parallel_size";

}  // namespace sortie::config
