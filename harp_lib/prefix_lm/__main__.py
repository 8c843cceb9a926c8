"""lm-eval's command line, which also knows the model ``hf-prefix``.

    python -m harp_lib.prefix_lm --model hf-prefix --model_args pretrained=… --tasks mmlu

Arguments are lm-eval's own. Versions of lm-eval that read the entry points ``lm_eval.models`` know
the model without this launcher.
"""

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import model_registry

from .lm import PrefixLM

NAME = "hf-prefix"


def main() -> None:
    """Register the model and hand over to lm-eval."""
    if NAME not in model_registry:
        model_registry.register(NAME, target=PrefixLM)
    cli_evaluate()


if __name__ == "__main__":
    main()
