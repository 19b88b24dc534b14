"""The simulated runner verifies drafts as a real one does."""

from concurrent.futures import Future

from pagelet.engine.runner.simulated import SimulatedExecutor, simulated_token
from pagelet.engine.step import NewRequestData, RunnerOutput, ScheduledRequest, SchedulerOutput
from pagelet.protocol.config import SimulatedRunnerOptions
from pagelet.protocol.sampling import SamplingParams


def test_tokens_count_up_to_the_first_that_is_not_its_draft() -> None:
    tokens = [5]
    for position in range(1, 8):
        tokens.append(simulated_token(tokens[-1], position, 0, 1000))
    for wrong in range(4):
        executor = SimulatedExecutor(SimulatedRunnerOptions(), 1000)
        drafts = tokens[1:4]
        if wrong < 3:
            drafts[wrong] = 0
        data = NewRequestData(0, [5], 1, SamplingParams(temperature=0.0, logprobs=1), [], [[1]])
        entry = ScheduledRequest(0, 0, 4, True, draft_token_ids=drafts)
        future: Future[RunnerOutput] = executor.execute(SchedulerOutput(1, [data], [entry], [], 4))
        (sampled,) = future.result().sampled
        assert sampled.token_ids == tokens[1 : wrong + 2]
        assert sampled.logprobs is not None
        assert [entry.token_ids[0] for entry in sampled.logprobs] == sampled.token_ids
        end = wrong + 2
        later = executor.execute(
            SchedulerOutput(2, [], [ScheduledRequest(0, end - 1, 1, True)], [], 1)
        )
        assert later.result().sampled[0].token_ids == [tokens[end]]
