"""Configuration of the agent: flags over environment over TOML file over default."""

from rankwatch_agent.runtime.config.error import ConfigError
from rankwatch_agent.runtime.config.fields import AgentConfig
from rankwatch_agent.runtime.config.load import EffectiveConfig, load_config

__all__ = ["AgentConfig", "ConfigError", "EffectiveConfig", "load_config"]
