"""What a wrong input is answered with: one line, the key, what is allowed, the nearest name."""

from __future__ import annotations

import pytest

from cadenza.config.load import load
from cadenza.errors import CadenzaError

BAD_OVERRIDES = [
    # unknown keys
    ("learning_rate=1", "unknown key 'learning_rate'; did you mean 'algorithm.learning_rate'?"),
    ("algorithm.learning_rat=1", "unknown key 'algorithm.learning_rat'; did you mean 'algorithm.learning_rate'?"),
    ("algorithm.Gamma=0.9", "unknown key 'algorithm.Gamma'; did you mean 'algorithm.gamma'?"),
    ("environment.learning_rate=1", "unknown key 'environment.learning_rate'; did you mean 'algorithm.learning_rate'?"),
    (
        "algorithm.hidden_sizes=[8]",
        "unknown key 'algorithm.hidden_sizes'; did you mean 'algorithm.torso.hidden_sizes'?",
    ),
    ("num_env=4", "unknown key 'num_env'; did you mean 'environment.num_envs'?"),
    ("training.max_timestep=5", "unknown key 'training.max_timestep'; did you mean 'training.max_timesteps'?"),
    ("sed=3", "unknown key 'sed'; did you mean 'seed'?"),
    ("+checkpoint_every_steps=3", "unknown key 'checkpoint_every_steps'; did you mean 'checkpoint.every_steps'?"),
    ("algorithm.learning_rate={strat: 1}", "unknown key 'algorithm.learning_rate.strat'; did you mean"),
    ("size=tiny", "size=tiny is not for this algorithm: it sets 'algorithm.model'"),
    ("~algorithm.gama", "'~algorithm.gama' removes an unknown key; did you mean 'algorithm.gamma'?"),
    # wrong types
    ("seed=true", "seed=true: must be a whole number"),
    ("seed=1.5", "seed=1.5: must be a whole number"),
    ("seed=null", "seed=null: must be a whole number"),
    ("algorithm.gamma=high", "algorithm.gamma='high': must be a number"),
    ("algorithm.gamma='0.5'", "algorithm.gamma='0.5': must be a number"),
    ("algorithm.gamma=nan", "algorithm.gamma=nan: must be finite"),
    ("algorithm.entropy_coef=inf", "algorithm.entropy_coef=inf: must be finite"),
    ("algorithm.n_steps=many", "algorithm.n_steps='many': must be a whole number"),
    ("algorithm.normalize_advantage=1", "algorithm.normalize_advantage=1: must be true or false"),
    ("tags=a", "tags='a': must be a list of words"),
    ("algorithm.actor.hidden_sizes=64", "algorithm.actor.hidden_sizes=64: must be a list of whole numbers"),
    ("algorithm.actor.hidden_sizes=[64,x]", "algorithm.actor.hidden_sizes[1]='x': must be a whole number"),
    ("environment=[1]", "environment=[1]: must be settings (id, num_envs, "),
    ("environment.workers=all", "environment.workers='all': must be a whole number or auto"),
    (
        "algorithm.learning_rate=fast",
        "algorithm.learning_rate='fast': must be a number or a schedule such as lin_0.001",
    ),
    ("training.max_timesteps=99999999999999999999", "training.max_timesteps=99999999999999999999: too large"),
    # values not allowed
    (
        "algorithm.normalize_obs=roling",
        "algorithm.normalize_obs='roling': must be true or false or one of rolling, static; did you mean 'rolling'?",
    ),
    ("algorithm.optimizer.betas=[0.9]", "algorithm.optimizer.betas=[0.9]: must be a list of 2, not 1"),
    ("algorithm.torso.cnn.layers=[[8,3]]", "algorithm.torso.cnn.layers[0]=[8, 3]: must be a list of 3, not 2"),
    (
        "algorithm.torso.memory.burn_in=4",
        "algorithm.torso.memory.sequence_length and burn_in need a memory, and type is none",
    ),
    ("algorithm.optimizer.momentum=0.5", "algorithm.optimizer.momentum belongs to sgd and rmsprop, not to adam"),
    ("algorithm.torso.encoder=cnn", "algorithm.torso.encoder='cnn': must be auto, or an import path"),
    ("algorithm.name=a2c", "algorithm.name=a2c: the spec says ppo; write ENV:a2c instead"),
    ("algorithm.torso.memory.size=0", "algorithm.torso.memory.size=0: must be at least 1"),
    ("algorithm.name=pp0", "algorithm.name='pp0': unknown algorithm 'pp0'; did you mean 'ppo'?"),
    ("algorithm=pp0", "'algorithm=pp0': no such choice; did you mean 'ppo'? (choices: a2c, "),
    ("algorithm=[]", "'algorithm=[]': no such choice"),
    ("size=7", "'size=7': no such choice (choices: 1, 100m, "),
    ("size=[tiny,7]", "'size=[tiny,7]': no such choice (choices: 1, 100m, "),
    ("~size=5", "'~size=5' removes what is not there: nothing of it is chosen"),
    ("~algorithm=sac", "'~algorithm=sac' removes what is not there: chosen is ppo"),
    ("size@algorithm=5", "unknown key 'algorithm.latent'"),
    ("experiment=CartPole/ppo", "'experiment=CartPole/ppo': no such choice; did you mean 'CartPole-v1/ppo'?"),
    ("seed=-1", "seed=-1: must be at least 0"),
    ("algorithm.gamma=1.5", "algorithm.gamma=1.5: must be in [0, 1]"),
    ("algorithm.actor.hidden_sizes=[0]", "algorithm.actor.hidden_sizes[0]=0: must be at least 1"),
    (
        "algorithm.clip_range=lin_x",
        "algorithm.clip_range: 'lin_x' is no schedule; write lin_ and a number, e.g. lin_0.001, "
        "or {start_value: A, end_value: B}",
    ),
    ("training.phases=[]", "training.phases is empty"),
    (
        "training.phases=[{hooks: [colect]}]",
        "training.phases[0]: phase train: an online phase needs the hook collect, this one has colect",
    ),
    (
        "training.early_stop={metric: eval/retrun_mean}",
        "training.early_stop.metric=eval/retrun_mean: unknown; did you mean 'eval/return_mean'?",
    ),
    ("training.early_stop={metric: return}", "training.early_stop.metric=return: must begin with eval/, collect/"),
    ("algorithm.n_steps=-3", "algorithm.n_steps=-3: must be at least 1"),
    ("training.phases=[{hooks: []}]", "training.phases[0]: phase train: needs at least one hook"),
    (
        "training.phases=[{hooks: [{name: collect, steps: 0}]}]",
        "training.phases[0].hooks[0].steps=0: must be at least 1",
    ),
    ("schema_version=7", "schema_version=7: "),
    ("environment.id=CartPol-v1", "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
    ("environment.id='\"\"'", "unknown environment"),
    ("environment.id=null", "environment.id=null: must be text"),
    # grammar
    ("lr=", "'lr=' has no value: write null for none"),
    ("seed", "'seed' is no override: write key=value, without blanks"),
    ("=3", "'=3' is no override: write key=value, without blanks"),
    ("~", "'~' is no override: write key=value, without blanks"),
    ("algorithm.gamma=[", "'algorithm.gamma=[' cannot be read ("),
    ("seed=1,2", "'seed=1,2' gives several values: a list is written seed=[a,b]"),
    ("seed=range(1,5)", "'seed=range(1,5)' gives several values"),
    ("foo/bar=x", "'foo/bar=x': no config group 'foo/bar'"),
    ("seed=${nokey}", "'CartPole-v1:ppo' cannot be composed: Interpolation key 'nokey' not found (at seed)"),
    ("seed=???", "'CartPole-v1:ppo' cannot be composed: Missing mandatory value: seed"),
    (
        "algorithm.clip_range.end_value=1",
        "algorithm.clip_range.end_value: algorithm.clip_range is 'lin_0.2' and has no parts",
    ),
]

BAD_SPECS = [
    ("CartPole-v1", "spec 'CartPole-v1' names no variant: write CartPole-v1:VARIANT (variants: a2c, "),
    ("CartPole-v1:ppo_lstn", "unknown algorithm 'ppo_lstn'; did you mean 'ppo_lstm'?"),
    ("CartPole", "spec 'CartPole' names no variant: write CartPole-v1:VARIANT"),
    (":ppo", "spec ':ppo' must be ENV:VARIANT, e.g. CartPole-v1:ppo"),
    ("CartPole-v1:", "spec 'CartPole-v1:' must be ENV:VARIANT"),
    (":", "spec ':' must be ENV:VARIANT"),
    ("", "spec '' must be ENV:VARIANT"),
    ("CartPol-v1:ppo", "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
    ("CartPole-v1:pppo", "unknown algorithm 'pppo'; did you mean 'ppo'?"),
    ("CartPole-v1/pppo", "'CartPole-v1/pppo' is no experiment or file; did you mean 'CartPole-v1/ppo'?"),
    ("nothing.yaml", "no file 'nothing.yaml'"),
]


def refusal(spec: str, *overrides: str) -> str:
    with pytest.raises(CadenzaError) as caught:
        load(spec, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(("override", "message"), BAD_OVERRIDES, ids=[override for override, _ in BAD_OVERRIDES])
def test_bad_override(override: str, message: str) -> None:
    answer = refusal("CartPole-v1:ppo", override)
    assert answer.startswith(message)
    assert "\n" not in answer


@pytest.mark.parametrize(("spec", "message"), BAD_SPECS, ids=[spec or "empty" for spec, _ in BAD_SPECS])
def test_bad_spec(spec: str, message: str) -> None:
    answer = refusal(spec)
    assert answer.startswith(message)
    assert "\n" not in answer
