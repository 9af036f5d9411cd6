CONF=[dict()]
for lr in (0.05,0.2): CONF.append(dict(lr=lr))
CONF+=[dict(crop=0,flip=0),dict(crop=0),dict(crop=1),dict(cut=8),dict(ls=0.1),dict(padz=True),dict(wd=1e-3),dict(wd=2e-4)]
CONF+=[dict(ch=(32,64,128),epochs=8),dict(ch=(16,32,64),epochs=20),dict(ch=(32,64),depth=2,epochs=7),dict(ch=(32,64),depth=2,res=False),dict(ch=(32,64,128),depth=2,res=False,epochs=8)]
CONF+=[dict(batch=256),dict(batch=64),dict(epochs=8),dict(epochs=16),dict(pool='average'),dict(drop=0.2),dict(opt='adamw',lr=0.004,wd=0.05),dict(opt='adamw',lr=0.008,wd=0.05)]
CONF+=[dict(ch=(32,64,128),epochs=8,lr=0.2),dict(ch=(32,64,64),epochs=10),dict(ch=(32,96),epochs=10),dict(ch=(16,32,64),epochs=20,lr=0.2),dict(ch=(16,64),epochs=20),dict(ch=(16,32,64),depth=2,epochs=12)]
CONF+=[dict(crop=1,ls=0.1,seed=1),dict(crop=1,ls=0.05,wd=1e-3)]
