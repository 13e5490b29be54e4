"""DQN in one file for an Atari-like environment: a replay buffer on the host and a target network."""

import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

TIMESTEPS, LEARNING_STARTS, TRAIN_FREQUENCY, TARGET_FREQUENCY, BATCH = 120, 100, 4, 8, 2048
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class QNetwork(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
            nn.Linear(512, actions),
        )

    def forward(self, x):
        return self.network(x / 255.0)


class ReplayBuffer:
    def __init__(self, size):
        self.frames = np.zeros((size, 4, 84, 84), dtype=np.uint8)
        self.actions = np.zeros((size, 1), dtype=np.int64)
        self.rewards, self.dones = np.zeros(size, dtype=np.float32), np.zeros(size, dtype=np.float32)
        self.position = 0

    def add(self, frame, action, reward, done):
        i = self.position % len(self.frames)
        self.frames[i], self.actions[i], self.rewards[i], self.dones[i] = frame, action, reward, done
        self.position += 1

    def sample(self, batch):
        index = np.random.randint(0, min(self.position, len(self.frames)) - 1, size=batch)
        arrays = (self.frames[index], self.frames[index + 1], self.actions[index], self.rewards[index])
        return [torch.as_tensor(array).to(device) for array in (*arrays, self.dones[index])]


def frame():
    return np.random.randint(0, 256, (4, 84, 84), dtype=np.uint8)


q_network = QNetwork().to(device)
target_network = QNetwork().to(device)
target_network.load_state_dict(q_network.state_dict())
optimizer = torch.optim.Adam(q_network.parameters(), lr=1e-4)
buffer, obs = ReplayBuffer(1000), frame()
for global_step in range(TIMESTEPS):
    epsilon = max(0.01, 1 - global_step / 100)
    if random.random() < epsilon:
        action = random.randrange(6)
    else:
        action = torch.argmax(q_network(torch.Tensor(obs[None]).to(device)), dim=1).cpu().numpy()[0]
    buffer.add(obs, action, np.random.randn(), np.random.rand() < 0.01)
    obs = frame()
    if global_step > LEARNING_STARTS:
        if global_step % TRAIN_FREQUENCY == 0:
            frames, following, actions, rewards, dones = buffer.sample(BATCH)
            with torch.no_grad():
                target_max, _ = target_network(following).max(dim=1)
                td_target = rewards.flatten() + 0.99 * target_max * (1 - dones.flatten())
            old_val = q_network(frames).gather(1, actions).squeeze()
            loss = F.mse_loss(td_target, old_val)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if global_step % TARGET_FREQUENCY == 0:
            for target, source in zip(target_network.parameters(), q_network.parameters(), strict=True):
                target.data.copy_(1.0 * source.data + 0.0 * target.data)
print(f"TD loss {loss.item():.3f}")
