"""The sections of docs/walkthrough.md: titles, texts and commands.

A command has `run`, the bash command, run in the clone; `lines`, the numbers of first and last output lines to show;
`says`, texts that the output must contain; `codes`, accepted exit codes; `show`, a file shown instead of the output.
"""

STEPS = [
    {"title": "Build"},
    {"text": "`./quickstart` installs missing packages, builds Hawser, and trains a small model from scratch.\n"
             "It checks the installation."},
    {"run": "./quickstart", "lines": (8, 34), "says": ["bigram"]},

    {"title": "Check the machine"},
    {"run": "hawser doctor", "lines": (40, 5)},

    {"title": "Model and data"},
    {"text": "SmolLM2-135M in Hugging Face format, with weights that were rounded to 4 bits, and six novels, whose dialogues\n"
             "become conversations for chat fine-tuning."},
    {"run": "scripts/fetch-inputs --what smollm2 --what text", "lines": (3, 5)},
    {"run": "python3 tools/walkthrough/dialogues.py inputs/text/austen chat.jsonl"},
    {"run": "head -c 400 chat.jsonl"},

    {"title": "Write a recipe"},
    {"text": "`recipe init` reads the model, samples the data, and uses the planner to find settings that fit the\n"
             "machine."},
    {"run": "hawser recipe init --model inputs/smollm2 --data chat.jsonl --ranks 2 --output recipe.yaml \\\n"
            "  --set name=austen-chat --set data.sequence_length=256 \\\n"
            "  --set train.steps=12 --set train.global_batch_size=4 --set train.evaluate_every=4 \\\n"
            "  --set train.evaluate_batches=4 --set optimizer.learning_rate=2e-4 --set optimizer.warmup_steps=5 \\\n"
            "  --set checkpoint.every_steps=2 --set report.tensorboard=true",
     "show": "recipe.yaml", "lines": (36, 6)},
    {"run": "hawser prepare recipe.yaml", "lines": (14, 12)},
    {"run": "hawser inspect data recipe.yaml --samples 1", "lines": (14, 3)},
    {"run": "hawser plan recipe.yaml --ranks 2", "lines": (40, 10)},

    {"title": "Train, crash and resume"},
    {"text": "The run is killed at a random time with SIGKILL, then resumed."},
    {"run": "hawser fit recipe.yaml --ranks 2 &\n"
            "until [ -e runs/austen-chat/checkpoints/step-00000002 ]; do sleep 1; done\n"
            "sleep $((RANDOM % 15)); kill -9 $!; wait $!", "codes": [137],
     "lines": (10, 6)},
    {"run": "hawser inspect checkpoint runs/austen-chat --verify", "lines": (14, 4)},
    {"run": "hawser fit recipe.yaml --ranks 2 --resume", "lines": (8, 12), "says": ["done after step 12"]},
    {"run": "ls runs/austen-chat runs/austen-chat/checkpoints"},

    {"title": "Monitor"},
    {"text": "The report of the run is the self-contained page `runs/austen-chat/report.html`; TensorBoard reads\n"
             "the run's event files.\n\n"
             "![the report](pictures/report-light.png)\n\n![TensorBoard](pictures/tensorboard.png)"},
    {"run": "apt-get install -y -q --no-install-recommends python3-venv > /dev/null 2>&1 && python3 -m venv build/venv &&\n"
            "build/venv/bin/pip install -q tensorboard==2.21.0 setuptools==80.9.0 2>&1 | grep -v notice", "codes": [0, 1]},
    {"run": "build/venv/bin/python - <<'END'\n"
            "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
            "events = EventAccumulator('runs/austen-chat/tensorboard').Reload()\n"
            "for tag in events.Tags()['scalars']:\n"
            "    points = events.Scalars(tag)\n"
            "    print(f'{tag:32} {len(points):3} points, last at step {points[-1].step}: {points[-1].value:.5g}')\n"
            "END", "lines": (20, 4)},

    {"title": "Generate"},
    {"text": "The base model and the fine-tuned model complete the same prompt; then the best checkpoint chats."},
    {"run": "for model in inputs/smollm2 runs/austen-chat/best; do\n"
            "  hawser generate --model $model --max-tokens 40 \\\n"
            "    --prompt $'<|im_start|>user\\nWill you dance with me, Mr. Darcy?<|im_end|>\\n<|im_start|>assistant\\n'\n"
            "done", "lines": (30, 10)},
    {"run": "printf '%s\\n' 'Will you dance with me, Mr. Darcy?' 'But why not?' |\n"
            "  hawser generate --model runs/austen-chat/best --chat --max-tokens 40 --temperature 0.7 "
            "--seed 1", "lines": (20, 10)},

    {"title": "Export"},
    {"text": "The export is a Hugging Face folder. transformers loads it (here with Debian's PyTorch) and generates\n"
             "the same text."},
    {"run": "hawser export runs/austen-chat/best models/austen-chat && ls models/austen-chat", "lines": (10, 10)},
    {"run": "apt-get install -y -q --no-install-recommends python3-torch > /dev/null 2>&1 &&\n"
            "python3 -m venv --system-site-packages build/hf &&\n"
            "build/hf/bin/pip install -q 'transformers==4.45.2' 'numpy<2' 2>&1 | grep -v notice", "codes": [0, 1]},
    {"run": "build/hf/bin/python - 2> /dev/null <<'END'\n"
            "import torch\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n"
            "tokenizer = AutoTokenizer.from_pretrained('models/austen-chat')\n"
            "model = AutoModelForCausalLM.from_pretrained('models/austen-chat', torch_dtype=torch.float32)\n"
            "text = '<|im_start|>user\\nWill you dance with me, Mr. Darcy?<|im_end|>\\n<|im_start|>assistant\\n'\n"
            "ids = tokenizer(text, return_tensors='pt').input_ids\n"
            "print(tokenizer.decode(model.generate(ids, max_new_tokens=40, do_sample=False)[0]))\n"
            "END"},
]
