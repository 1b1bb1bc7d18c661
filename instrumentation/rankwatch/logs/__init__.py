"""Log lines that know their run: a JSON handler for `logging`, fields for any other library.

logging.basicConfig(level="INFO", handlers=[rankwatch.logs.JsonHandler()])

structlog.configure(processors=[lambda _, __, event: rankwatch.logs.fields() | event, ...])
loguru.logger.add(rankwatch.logs.JsonHandler(), format="{message}")
"""

from rankwatch.logs.json_lines import JsonFormatter, JsonHandler, fields

__all__ = ["JsonHandler", "JsonFormatter", "fields"]
