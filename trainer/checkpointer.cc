#include "trainer/checkpointer.h"
namespace sortie::trainer {
Checkpointer::Checkpointer(const config::JobConfig& job, const BitFacts& facts, ParameterStore& store, Communicator& communicator)
    : job_(job), facts_(facts), store_(store), communicator_(communicator) {}
Result<SavedCheckpoint> Checkpointer::save(const TrainingProgress&) { (void)job_; (void)facts_; (void)store_; (void)communicator_; return fail(ErrorCode::unsupported, ""); }
Result<std::optional<LoadedCheckpoint>> Checkpointer::load() { return std::nullopt; }
}
