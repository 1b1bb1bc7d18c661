"""The indicators of whether a run learns."""

from __future__ import annotations

from rankwatch_alerts.catalogue.sli import sli
from rankwatch_alerts.rules import Alert

LEARNING = (
    sli(
        "loss",
        "Does the loss follow its own trend?",
        "rankwatch_loss_deviation",
        "rankwatch_loss_trend",
        "run:rankwatch_loss_diverging:deviation",
        alerts=(Alert.LOSS_DIVERGING,),
    ),
    sli(
        "plateau",
        "Does the loss still improve?",
        "rankwatch_loss_improvement",
        alerts=(Alert.LOSS_PLATEAU,),
    ),
    sli(
        "loss spikes",
        "How often does the loss spike and recover?",
        "rankwatch_loss_spikes_total",
        no_alert="single spikes are normal, and one that stays is a divergence",
    ),
    sli(
        "non-finite values",
        "Is the loss a number, and which rank had NaN first?",
        "rankwatch_scalar_nonfinite_total",
        "rank:rankwatch_scalar_first_nonfinite_step:first",
        alerts=(Alert.LOSS_NON_FINITE,),
    ),
    sli(
        "gradient and update norms",
        "Do norms stay near their trend?",
        "rankwatch_norm_ratio",
        "rankwatch_norm_explosions_total",
        alerts=(Alert.NORM_EXPLODING,),
    ),
    sli(
        "loss scale",
        "Does the gradient scaler find a scale that works?",
        "rankwatch_loss_scale_collapsed",
        "rankwatch_updates_skipped_total",
        "run:rankwatch_loss_scale_collapsed:count",
        alerts=(Alert.LOSS_SCALE_COLLAPSED,),
    ),
    sli(
        "data skew",
        "Do the data of a rank differ from those of its peers?",
        "rank:rankwatch_loss_level:relative",
        "rank:rankwatch_data_skew:ratio",
        alerts=(Alert.DATA_SKEW,),
    ),
    sli(
        "changes of regime",
        "Why may the loss stand elsewhere?",
        "rankwatch_learning_resets_total",
        no_alert="a restart, another learning rate or batch size is a reason, no fault",
    ),
)
