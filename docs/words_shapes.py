"""What the fields of ``/v1/responses`` and ``/v1/messages`` mean, by name as in `words`."""

from __future__ import annotations

from typing import Final

_DRAWN: Final = {
    "model": "The model's name, as `GET /v1/models` has it.",
    "stream": "Give the answer as server-sent events while it is made.",
    "temperature": "0 always takes the likeliest token. If left out, as [the model](#sampling) has "
    "it, or else 1.",
    "top_p": "Choose among the likeliest tokens that make up this share; 1 if left out.",
    "top_k": "Choose among this many likeliest tokens; all if left out or 0.",
}

_PARTS: Final = {
    "type": "`input_text`, `output_text`, `text`, `refusal`, or in reasoning `reasoning_text` and "
    "`summary_text`. `input_file` with `file_data` that is text is text. Others, such as images, "
    "are refused in the last turn; in earlier turns a few words stand for them, and "
    "`x-sealring-ignored` says where.",
    "text": "Its text.",
    "refusal": "The text of a refusal.",
    "file_data": "A file as a `data:` URL.",
    "filename": "Its name, which the model is told.",
}


def _below(prefix: str, words: dict[str, str]) -> dict[str, str]:
    return {f"{prefix}.{name}": meaning for name, meaning in words.items()}


_TOOL: Final = {
    "type": "`function`, `custom` (its input is free text) or `namespace` (a group of both). "
    "`web_search`, `web_search_preview` and `tool_search` are left out, which the header "
    "`x-sealring-ignored` says; other tools that a server would run are refused.",
    "name": "Its name.",
    "description": "What it does, for the model.",
    "parameters": "A JSON schema of its arguments. The model is told of it; a call may be held "
    "to it, too: see [forms](#forms).",
    "strict": "With true the arguments of a function's call are held to the schema; "
    "`x-sealring-ignored` names what of it is not. See [forms](#forms). Not used of a custom tool.",
    "format": "The form of a custom tool's input. The model is told of it, and not held to it.",
    "format.type": "`text` or `grammar`.",
    "format.syntax": "The language of the grammar.",
    "format.definition": "The grammar.",
    "tools": "The tools of a namespace.",
}

RESPONSES: Final = {
    **_DRAWN,
    "input": "A text of the user's, or the items of a conversation.",
    "input[].type": "`message` (also if left out), `reasoning`, `function_call`, "
    "`function_call_output`, `custom_tool_call` or `custom_tool_call_output`. What a server ran "
    "(`web_search_call`, `file_search_call`, `code_interpreter_call`, `mcp_...`) is told in words. "
    "Others are refused.",
    "input[].id": "Its id; one is made if left out.",
    "input[].role": "Whose message it is. The instructions and the messages of `system` and "
    "`developer` that come first are one message of the system's for the model. An order of roles "
    "that the template refuses is [changed](#conversations).",
    "input[].content": "The text of a message, or of reasoning.",
    **_below("input[].content[]", _PARTS),
    "input[].name": "The tool that was called.",
    "input[].namespace": "The namespace of that tool.",
    "input[].call_id": "Which call it is, or the output is of.",
    "input[].arguments": "The arguments of a function's call, as a JSON text.",
    "input[].input": "The input of a custom tool's call.",
    "input[].output": "What a call gave.",
    **_below("input[].output[]", _PARTS),
    "input[].summary": "The summary of reasoning, read where there is no `content`.",
    **_below("input[].summary[]", _PARTS),
    "input[].encrypted_content": "Taken, and not used: nothing is encrypted here.",
    "instructions": "What the system says first. Those of an earlier response do not count.",
    "previous_response_id": "The response whose conversation goes on. It must be kept.",
    "store": "With false nothing is kept of the response.",
    "max_output_tokens": "The most tokens of the answer, reasoning included; what the context "
    "allows if left out. If that is less, the answer gets it, and `x-sealring-adapted` names the "
    "field. `max_completion_tokens` and `max_tokens` are taken for it where it is left out.",
    "min_p": "Leave out tokens less likely than this share of the likeliest; 0 if left out.",
    "presence_penalty": "Off the logit of every token that the answer has; 0 if left out.",
    "frequency_penalty": "As `presence_penalty`, once for each time that the answer has the "
    "token; 0 if left out.",
    "seed": "The same seed, settings and prompt give the same text; random if left out.",
    "tools": "The tools that the model may call. Where the model's template has none, a "
    "message tells the model of them, and the answer's header `x-sealring-tools` says `in-words`; "
    "where one must be called, the answer is held to the JSON of a call, and it says `as-json`.",
    **_below("tools[]", _TOOL),
    "tool_choice": "`auto` if left out. With `required` or a tool the call is begun for the "
    "model, and held to its [form](#forms).",
    "tool_choice.type": "`function`, `custom`, or `allowed_tools`.",
    "tool_choice.name": "The tool that has to be called.",
    "tool_choice.namespace": "Its namespace.",
    "tool_choice.mode": "Of allowed tools: whether one has to be called.",
    "tool_choice.tools": "The tools that may be called.",
    "tool_choice.tools[].type": "`function` or `custom`.",
    "tool_choice.tools[].name": "Its name.",
    "tool_choice.tools[].namespace": "Its namespace.",
    "parallel_tool_calls": "With false the answer ends after its first call.",
    "text": "What the answer's text has to be like.",
    "text.format": "The form of the answer, as `response_format` of chat completions.",
    "text.format.type": "As there.",
    "text.format.name": "What the schema is called; has no effect.",
    "text.format.description": "What it is for; has no effect.",
    "text.format.schema": "The JSON schema. It is held; see [forms](#forms).",
    "text.format.strict": "Has no effect: a schema is always held.",
    "text.verbosity": "Not used, which `x-sealring-ignored` says.",
    "reasoning": "How the model thinks.",
    "reasoning.effort": "Given to the model's template; `none` turns thinking off where the model "
    "thinks.",
    "reasoning.summary": "With any value the reasoning is given as its own summary, whole.",
    "chat_template_kwargs": "More settings for the model's template; none that it reserves.",
    "top_logprobs": "How many of the likeliest tokens to tell log probabilities for.",
    "include": "`message.output_text.logprobs` tells log probabilities; others change nothing, "
    "which `x-sealring-ignored` says.",
    "metadata": "Kept and given back.",
    "truncation": "Nothing is cut off with either: what is too long is refused. "
    "`x-sealring-ignored` names it with `auto`.",
    "background": "With `stream`, the response is made though its client goes, which can "
    "[come back](#coming-back-to-an-answer).",
    "user": "Not used, which `x-sealring-ignored` says.",
}

_BLOCK: Final = {
    "text": "Its text.",
    "thinking": "What the model thought.",
    "id": "The call's id, which its result names.",
    "name": "The tool that was called.",
    "input": "Its arguments.",
    "tool_use_id": "Of which call it is the result.",
    "content": "What the call gave: a text, or blocks of text.",
    "is_error": "Whether the call failed; the model is told so.",
    "source": "What a document has, or where a search found it.",
    "title": "The title of a document or of what a search found.",
    "tool_name": "The tool that a reference names.",
}

COUNT: Final = {
    "model": "The model's name, as `GET /v1/models` has it.",
    "messages": "The conversation so far. If it ends with the assistant's turn, the answer goes on "
    "with that.",
    "messages[].role": "Whose turn it is. What the system says in the middle is put into the "
    "user's turn, within `<system-reminder>`.",
    "messages[].content": "A text, or blocks.",
    "messages[].content[].type": "`text`; of the assistant also `thinking`, `redacted_thinking` "
    "and `tool_use`, of the user `tool_result`. Documents and search results that are text are "
    "read; what a server ran and found (`server_tool_use`, `web_search_tool_result` and the like) "
    "is told in words. Images and other files are refused in the last turn; in earlier turns a few "
    "words stand for them, and `x-sealring-ignored` says where.",
    **_below("messages[].content[]", _BLOCK),
    "system": "What the system says first. A block that begins with "
    "`x-anthropic-billing-header:` is left out.",
    "system[].type": "`text`.",
    **_below("system[]", {**_BLOCK, **dict.fromkeys(set(_BLOCK) - {"text"}, "Not used here.")}),
    "tools": "The tools that the model may use. Where the model's template has none, a "
    "message tells the model of them, and the answer's header `x-sealring-tools` says `in-words`; "
    "where one must be called, the answer is held to the JSON of a call, and it says `as-json`.",
    "tools[].type": "`custom`, also if left out. `web_search_...`, `web_fetch_...` and "
    "`tool_search_...` are left out, which `x-sealring-ignored` says; other tools of Anthropic's "
    "are refused.",
    "tools[].name": "Its name.",
    "tools[].description": "What it does, for the model.",
    "tools[].input_schema": "A JSON schema of its input. The model is told of it; a call may be "
    "held to it, too: see [forms](#forms).",
    "tools[].strict": "With true a call's input is held to the schema; `x-sealring-ignored` names "
    "what of it is not. See [forms](#forms).",
    "tool_choice": "`auto` if left out. With `any` or `tool` the call is begun for the model, and "
    "held to its [form](#forms).",
    "tool_choice.type": "Which tools may or must be used.",
    "tool_choice.name": "The tool that must be used, for `tool`.",
    "tool_choice.disable_parallel_tool_use": "With true the answer ends after its first call.",
    "thinking": "Whether the model thinks, where it can; as its template has it if left out.",
    "thinking.type": "`disabled` turns thinking off; the others turn it on.",
    "output_config": "How hard the model tries, and the form of its answer.",
    "output_config.effort": "Given to the model's template as `reasoning_effort`.",
    "output_config.format": "The form of the answer, as `response_format` of chat completions.",
    "output_config.format.type": "As there.",
    "output_config.format.schema": "The JSON schema. It is held; see [forms](#forms).",
}

MESSAGES: Final = {
    **_DRAWN,
    **COUNT,
    "max_tokens": "The most tokens of the answer, thinking included. If the context has less, the "
    "answer ends there, with the reason `model_context_window_exceeded`, and `x-sealring-adapted` "
    "names the field.",
    "stop_sequences": "The answer ends before any of these texts.",
}
